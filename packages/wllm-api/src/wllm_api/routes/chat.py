"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from wllm_api.answers.chat import ChatAnswer
from wllm_api.answers.message import MessageText
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.generation import Generation, Job
from wllm_api.messages import chat_prompt
from wllm_api.model import ServedModel
from wllm_api.params import sampling_params
from wllm_api.routes.common import (
    answer_id,
    cache_salt,
    logprobs_format,
    refuse_streamed_prompt_logprobs,
    serving_of,
    truncated,
)
from wllm_api.schemas.chat import ChatRequest
from wllm_api.sse import EventStream
from wllm_api.structured import grammar_for
from wllm_api.tool_offer import tool_offer
from wllm_api.tools import AnswerParser

router = APIRouter()


@router.post("/chat/completions")
async def create_chat_completion(
    request: Request, body: Annotated[ChatRequest, Depends(body_of(ChatRequest))]
) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    serving = serving_of(request)
    model = await serving.model(body.model)
    answer = await _prepare(request, body, model)
    if body.stream:
        return EventStream(answer.stream(), serving.limits)
    return JSONResponse(await until_disconnect(request, answer.whole()))


async def _prepare(request: Request, body: ChatRequest, model: ServedModel) -> ChatAnswer:
    refuse_streamed_prompt_logprobs(body)
    offer = tool_offer(body, model)
    text = await chat_prompt(
        body.messages,
        model,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        extra=_template_variables(body),
        tools=[tool.for_template() for tool in offer.tools] or None,
    )
    token_ids = await model.encode(text, add_special_tokens=body.add_special_tokens, param="messages")
    token_ids = truncated(token_ids, body, model)
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    params = sampling_params(
        body,
        model,
        max_tokens=model.room(len(token_ids), None if wanted == -1 else wanted, "messages"),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        cache_salt=cache_salt(request, body),
        grammar=await grammar_for(body, model, forced=offer.constraint),
    )
    serving = serving_of(request)
    last = body.messages[-1]
    special = model.tokenizer.special_ids(model.format.marks(with_tools=bool(offer.tools)))
    free_parser = model.format.parser(
        text,
        tools=offer.schemas if offer.tools else None,
        special=frozenset(special) if body.skip_special_tokens else frozenset(),
    )
    forced = offer.script
    return ChatAnswer(
        body,
        Generation(serving, model, [Job(token_ids, params)], kept=frozenset(special.values())),
        answer_id=answer_id("chatcmpl", body),
        model_name=body.model or serving.names[0],
        prompt_token_ids=token_ids,
        logprobs=logprobs_format(body, model),
        echo=(last.content or "") if body.echo and last.role == "assistant" else "",
        new_message=lambda: MessageText(
            free_parser() if forced is None else AnswerParser(forced),
            show_reasoning=body.include_reasoning,
            max_calls=None if body.parallel_tool_calls else 1,
            short_ids=model.format.short_ids,
            named=offer.named is not None,
        ),
    )


def _template_variables(body: ChatRequest) -> dict[str, object]:
    variables = dict(body.chat_template_kwargs)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        variables.setdefault("enable_thinking", body.reasoning_effort != "none")
    return variables
