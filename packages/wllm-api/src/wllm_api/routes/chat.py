"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from wllm_api.answers.chat import ChatAnswer
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.hosting import LoadedModel
from wllm_api.routes.chat_turn import Conversation, Wishes, chat_turn
from wllm_api.routes.common import (
    answer_id,
    logprobs_format,
    model_of,
    refuse_streamed_prompt_logprobs,
    serving_of,
)
from wllm_api.schemas.chat import ChatRequest
from wllm_api.sse import EventStream

router = APIRouter()


@router.post("/chat/completions")
async def create_chat_completion(
    request: Request, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))]
) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    serving = serving_of(request)
    model = await model_of(request, body.model)
    answer = await _prepare(request, body, model)
    if body.stream:
        return EventStream(answer.stream(), serving.limits)
    return JSONResponse(await until_disconnect(request, answer.whole()))


async def _prepare(request: Request, body: ChatRequest, model: LoadedModel) -> ChatAnswer:
    refuse_streamed_prompt_logprobs(body)
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    turn = await chat_turn(
        request,
        Conversation(
            messages=body.messages,
            tools=body.tool_use,
            variables=_template_variables(body),
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
        ),
        Wishes(
            fields=body,
            room=lambda length: model.room(length, None if wanted == -1 else wanted, "messages"),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            show_reasoning=body.include_reasoning,
        ),
        model,
    )
    last = body.messages[-1]
    return ChatAnswer(
        body,
        turn.generation,
        answer_id=answer_id("chatcmpl", body),
        model_name=body.model or serving_of(request).names[0],
        prompt_token_ids=turn.prompt_token_ids,
        logprobs=logprobs_format(body, model),
        echo=(last.content or "") if body.echo and last.role == "assistant" else "",
        new_message=turn.new_message,
    )


def _template_variables(body: ChatRequest) -> dict[str, object]:
    variables = dict(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        variables.setdefault("enable_thinking", body.reasoning_effort != "none")
    return variables
