"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from wllm_api.answers.messages import MessageAnswer, MessageStream
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.http_errors import ContextLengthExceeded
from wllm_api.model import ServedModel
from wllm_api.routes.chat_turn import Conversation, Wishes, chat_turn, prompt_token_ids
from wllm_api.routes.common import model_of, serving_of
from wllm_api.schemas.messages import CountTokensRequest, MessagesRequest
from wllm_api.structured import flat_format

router = APIRouter()


@router.post("/messages")
async def create_message(
    request: Request, body: Annotated[MessagesRequest, Depends(body_of(MessagesRequest))]
) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    serving = serving_of(request)
    model = await model_of(request, body.model)
    turn = await chat_turn(
        request,
        _conversation(body),
        Wishes(
            fields=body.sampling(),
            room=lambda length: min(body.max_tokens, _room(length, model)),
            forms=flat_format(body.output_config.format, "output_config.format"),
            show_reasoning=body.thinking.is_on and body.thinking.display != "omitted",
        ),
        model,
    )
    answer = MessageAnswer(
        turn.generation,
        request.scope,
        turn.new_message(),
        answer_id=f"msg_{uuid.uuid4().hex}",
        model_name=body.model or serving.names[0],
        fills_context=turn.params.max_tokens != body.max_tokens,
    )
    if body.stream:
        return MessageStream(answer, serving.limits)
    return JSONResponse(await until_disconnect(request, answer.whole()))


@router.post("/messages/count_tokens")
async def count_tokens(
    request: Request, body: Annotated[CountTokensRequest, Depends(body_of(CountTokensRequest))]
) -> dict[str, int]:
    """How many tokens the prompt of such a conversation has."""
    model = await model_of(request, body.model)
    return {"input_tokens": len(await prompt_token_ids(_conversation(body), model))}


def _conversation(body: CountTokensRequest) -> Conversation:
    return Conversation(
        messages=body.conversation(),
        tools=body.tool_use,
        variables=body.template_variables(),
        continue_final_message=body.continues,
    )


def _room(num_prompt_tokens: int, model: ServedModel) -> int:
    # Clients of this API must send `max_tokens` and send the most that the largest models take. So more than fits is no
    # error here: the answer then says that it ended with the context.
    most = model.info.max_model_len - 1
    if num_prompt_tokens > most:
        raise ContextLengthExceeded(
            f"prompt is too long: {num_prompt_tokens} tokens > {most} maximum, as far as it was counted. "
            "Send a shorter conversation.",
            param="messages",
        )
    return model.info.max_model_len - num_prompt_tokens
