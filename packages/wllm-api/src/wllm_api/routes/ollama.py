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
from wllm_api.grammars import Constraint
from wllm_api.grammars.constraint import Kind
from wllm_api.hosting import LoadedModel
from wllm_api.http_errors import InvalidRequest, Unsupported
from wllm_api.model import ServedModel
from wllm_api.ndjson import LineStream
from wllm_api.routes.chat_turn import ChatTurn, Conversation, Wishes, chat_turn, plain_turn
from wllm_api.routes.common import serving_of
from wllm_api.routes.ollama_models import kept_model, served_name
from wllm_api.schemas.chat import ChatMessage
from wllm_api.schemas.ollama import GenerationBody, OllamaChatRequest, OllamaGenerateRequest
from wllm_api.schemas.tools import ToolUse

router = APIRouter()


@router.post("/chat")
async def chat(request: Request, body: Annotated[OllamaChatRequest, Depends(body_of(OllamaChatRequest))]) -> Response:
    """Answer a conversation, as JSON lines unless `stream` is false."""
    if not body.messages and body.asks_to_unload:
        return _unloaded(request, body, chat=True)
    clock, model = await _model(request, body)
    if not body.messages:
        return _done(body, "load", chat=True)
    messages = [message.plain() for message in body.messages]
    conversation = Conversation(
        messages=messages, tools=ToolUse(body.tools), variables=body.template_variables, may_drop=body.truncate
    )
    turn = await chat_turn(request, conversation, _wishes(body, model), model)
    return await _answer(request, body, turn, model, clock)


@router.post("/generate")
async def generate(
    request: Request, body: Annotated[OllamaGenerateRequest, Depends(body_of(OllamaGenerateRequest))]
) -> Response:
    """Answer one prompt, as JSON lines unless `stream` is false."""
    is_empty = not body.prompt and not body.suffix
    if is_empty and body.asks_to_unload:
        return _unloaded(request, body, chat=False)
    clock, model = await _model(request, body)
    if is_empty:
        return _done(body, "load", chat=False)
    # A model without any template completes texts; what a `system` would mean to it nobody can say.
    if body.raw or body.suffix or (model.info.chat_template is None and not body.system):
        if body.suffix:
            token_ids = await model.fill_in(body.prompt, body.suffix, add_special_tokens=True)
        else:
            token_ids = await model.encode(body.prompt, add_special_tokens=True, param="prompt", to_fit=True)
        ends = model.infill.ends if body.suffix and model.infill else ()
        turn = await plain_turn(request, token_ids, _wishes(body, model), model, also_stop_at=ends)
    else:
        system = [ChatMessage(role="system", content=body.system)] if body.system else []
        conversation = Conversation(
            messages=[*system, ChatMessage(role="user", content=body.prompt)],
            variables=body.template_variables,
            param="prompt",
        )
        turn = await chat_turn(request, conversation, _wishes(body, model), model)
    return await _answer(request, body, turn, model, clock)


async def _model(request: Request, body: GenerationBody) -> tuple[Clock, LoadedModel]:
    arrived = time.perf_counter_ns()
    model = await kept_model(request, body, tasks=("generate",))
    body.options.check_context(model.info.max_model_len)
    if body.think and model.format.reasoning is None:
        raise Unsupported(
            f"'think' cannot be used: how '{body.model}' writes thoughts is not known from its chat template. Leave it "
            "out.",
            param="think",
        )
    return Clock(arrived, time.perf_counter_ns()), model


def _unloaded(request: Request, body: GenerationBody, *, chat: bool) -> Response:
    serving = serving_of(request)
    model = serving.hosted(served_name(serving, body.model))
    if not serving.may_unload(model):
        raise InvalidRequest(
            "'keep_alive' is 0 without a prompt, which asks to unload the model, but this server keeps its model for "
            "as long as it runs. Start it with --keep-alive if clients may unload the model.",
            param="keep_alive",
        )
    serving.residency.send_to_sleep(model)
    return _done(body, "unload", chat=chat)


def _done(body: GenerationBody, reason: str, *, chat: bool) -> Response:
    return JSONResponse({**answer_part(body.model, chat=chat), "done": True, "done_reason": reason})


def _wishes(body: GenerationBody, model: ServedModel) -> Wishes:
    forms = []
    if body.format is not None:
        kind: Kind = "json_object" if body.format == "json" else "json"
        forms.append(Constraint(kind, None if body.format == "json" else body.format, "format"))
    param = "messages" if isinstance(body, OllamaChatRequest) else "prompt"
    return Wishes(
        fields=body.options.sampling(),
        room=lambda length: model.room(length, body.options.max_tokens, param),
        forms=forms,
        logprobs=body.top_logprobs if body.logprobs else None,
        show_reasoning=body.shows_thoughts,
    )


async def _answer(request: Request, body: GenerationBody, turn: ChatTurn, model: ServedModel, clock: Clock) -> Response:
    answer = OllamaAnswer(
        turn.generation,
        turn.new_message(),
        model_name=body.model,
        chat=isinstance(body, OllamaChatRequest),
        logprobs=LogprobsFormat(model.tokenizer, as_ids=False) if body.logprobs else None,
        clock=clock,
    )
    if body.stream:
        return LineStream(answer.stream(), serving_of(request).limits)
    return JSONResponse(await until_disconnect(request, answer.whole()))
