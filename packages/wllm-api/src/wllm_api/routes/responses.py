"""POST /v1/responses; what was answered is not kept, so nothing can be got or cancelled later."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.responses import ResponseAnswer, ResponseStream
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.generation import Generation, Job
from wllm_api.http_errors import NotFound
from wllm_api.messages import chat_prompt
from wllm_api.model import ServedModel
from wllm_api.params import sampling_params
from wllm_api.routes.common import cache_salt, serving_of
from wllm_api.schemas.responses import ResponsesRequest

router = APIRouter()


@router.post("/responses")
async def create_response(
    request: Request, body: Annotated[ResponsesRequest, Depends(body_of(ResponsesRequest))]
) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    serving = serving_of(request)
    model = await serving.model(body.model)
    answer = await _prepare(request, body, model)
    if body.stream:
        return ResponseStream(answer, serving.limits)
    return JSONResponse(await until_disconnect(request, answer.whole()))


@router.get("/responses/{response_id}")
@router.delete("/responses/{response_id}")
@router.get("/responses/{response_id}/input_items")
@router.post("/responses/{response_id}/cancel")
async def find_response(response_id: str) -> Response:
    """Refuse: no response is kept."""
    raise NotFound(
        f"There is no response '{response_id[:80]}': this server keeps no answers. Send the whole conversation as "
        "'input' each time.",
        param="response_id",
    )


async def _prepare(request: Request, body: ResponsesRequest, model: ServedModel) -> ResponseAnswer:
    serving = serving_of(request)
    text = await chat_prompt(
        body.conversation(),
        model,
        add_generation_prompt=True,
        continue_final_message=False,
        extra=body.template_variables(),
    )
    token_ids = await model.encode(text, add_special_tokens=False, param="input")
    fields = body.sampling()
    params = sampling_params(
        fields,
        model,
        max_tokens=model.room(len(token_ids), body.max_output_tokens, "input"),
        logprobs=body.num_logprobs,
        prompt_logprobs=None,
        cache_salt=cache_salt(request, fields),
    )
    return ResponseAnswer(
        body,
        Generation(serving, model, [Job(token_ids, params)]),
        params,
        unique=uuid.uuid4().hex,
        model_name=body.model or serving.names[0],
        logprobs=LogprobsFormat(model.tokenizer, as_ids=not model.has_tokenizer),
    )
