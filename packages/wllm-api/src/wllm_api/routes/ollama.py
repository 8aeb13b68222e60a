"""POST /api/chat and /api/generate: Ollama's API over the same engine call as OpenAI's."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.ollama import Clock, OllamaAnswer, answer_part
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.generation import Generation, Job
from wllm_api.http_errors import InvalidRequest
from wllm_api.messages import chat_prompt
from wllm_api.model import ServedModel
from wllm_api.ndjson import LineStream
from wllm_api.params import sampling_params
from wllm_api.routes.common import cache_salt, serving_of
from wllm_api.routes.ollama_models import served_name
from wllm_api.schemas.chat import ChatMessage
from wllm_api.schemas.ollama import GenerationBody, OllamaChatRequest, OllamaGenerateRequest

router = APIRouter()


@router.post("/chat")
async def chat(request: Request, body: Annotated[OllamaChatRequest, Depends(body_of(OllamaChatRequest))]) -> Response:
    """Answer a conversation, as JSON lines unless `stream` is false."""
    clock, model = await _model(request, body)
    if not body.messages:
        return _loaded(body, chat=True)
    try:
        messages = [message.plain() for message in body.messages]
    except RecursionError:
        raise InvalidRequest(
            "The arguments of a tool call are nested too deeply. Send flatter JSON.", param="messages"
        ) from None
    text = await _through_template(messages, body, model)
    token_ids = await model.encode(text, add_special_tokens=False, param="messages")
    return await _answer(request, body, model, token_ids, clock)


@router.post("/generate")
async def generate(
    request: Request, body: Annotated[OllamaGenerateRequest, Depends(body_of(OllamaGenerateRequest))]
) -> Response:
    """Answer one prompt, as JSON lines unless `stream` is false."""
    clock, model = await _model(request, body)
    if not body.prompt:
        return _loaded(body, chat=False)
    # A model without any template completes texts; what a `system` would mean to it nobody can say.
    raw = body.raw or (model.info.chat_template is None and not body.system)
    if raw:
        text = body.prompt
    else:
        system = [ChatMessage(role="system", content=body.system)] if body.system else []
        text = await _through_template([*system, ChatMessage(role="user", content=body.prompt)], body, model)
    token_ids = await model.encode(text, add_special_tokens=raw, param="prompt")
    return await _answer(request, body, model, token_ids, clock)


async def _model(request: Request, body: GenerationBody) -> tuple[Clock, ServedModel]:
    arrived = time.perf_counter_ns()
    serving = serving_of(request)
    model = await serving.model(served_name(serving, body.model))
    body.options.check_context(model.info.max_model_len)
    return Clock(arrived, time.perf_counter_ns()), model


def _loaded(body: GenerationBody, *, chat: bool) -> Response:
    if body.asks_to_unload:
        raise InvalidRequest(
            f"'keep_alive' is {body.keep_alive} without a prompt, which asks to unload the model, but this server "
            "keeps its model for as long as it runs. Stop the server instead.",
            param="keep_alive",
        )
    return JSONResponse({**answer_part(body.model, chat=chat), "done": True, "done_reason": "load"})


async def _through_template(messages: list[ChatMessage], body: GenerationBody, model: ServedModel) -> str:
    return await chat_prompt(
        messages,
        model,
        add_generation_prompt=True,
        continue_final_message=False,
        extra=body.template_variables,
    )


async def _answer(
    request: Request, body: GenerationBody, model: ServedModel, token_ids: list[int], clock: Clock
) -> Response:
    serving = serving_of(request)
    chat = isinstance(body, OllamaChatRequest)
    fields = body.options.sampling()
    params = sampling_params(
        fields,
        model,
        max_tokens=model.room(len(token_ids), body.options.max_tokens, "messages" if chat else "prompt"),
        logprobs=body.top_logprobs if body.logprobs else None,
        prompt_logprobs=None,
        cache_salt=cache_salt(request, fields),
    )
    answer = OllamaAnswer(
        Generation(serving, model, [Job(token_ids, params)]),
        model_name=body.model,
        chat=chat,
        logprobs=LogprobsFormat(model.tokenizer, as_ids=False) if body.logprobs else None,
        clock=clock,
    )
    if body.stream:
        return LineStream(answer.stream(), serving.limits)
    return JSONResponse(await until_disconnect(request, answer.whole()))
