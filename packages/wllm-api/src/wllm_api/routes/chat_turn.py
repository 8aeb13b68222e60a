"""One turn of a conversation, asked for through any of the APIs: from messages to what the engine is given.

The APIs differ in their fields and in the shape of their answers. What lies between is here, once: the tools on offer,
the prompt, the form of the answer, the parser that takes it apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fastapi import Request

from wllm_api.answers.message import MessageText
from wllm_api.bodies import note_ignored
from wllm_api.generation import Generation, Job
from wllm_api.grammars import Constraint
from wllm_api.held_calls import held_calls
from wllm_api.hosting import LoadedModel
from wllm_api.http_errors import ContextLengthExceeded
from wllm_api.messages import chat_prompt
from wllm_api.model import ServedModel
from wllm_api.params import sampling_params
from wllm_api.routes.common import cache_salt, serving_of, truncated
from wllm_api.schemas.chat import ChatMessage
from wllm_api.schemas.sampling import SamplingFields
from wllm_api.schemas.tools import ToolUse
from wllm_api.structured import grammar_for
from wllm_api.threads import in_thread
from wllm_api.tool_offer import ToolOffer, tool_offer
from wllm_api.tools import AnswerParser, plain
from wllm_sched.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What stands before the answer; `variables` are for the chat template, `param` is the field of the messages.

    `may_drop`: of a conversation that does not fit, the oldest turns are left out.
    """

    messages: Sequence[ChatMessage]
    tools: ToolUse = field(default_factory=ToolUse)
    variables: Mapping[str, object] = field(default_factory=dict)
    param: str = "messages"
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    may_drop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is asked of the answer.

    `room` tells from the length of the prompt how many tokens the answer may have; `forms` are those that other fields
    than the sampling fields ask for; `logprobs` is the number of top entries, None for none at all.
    """

    fields: SamplingFields
    room: Callable[[int], int]
    forms: Sequence[Constraint] = ()
    logprobs: int | None = None
    show_reasoning: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A turn at work; `new_message` makes the reader of one answer's text."""

    generation: Generation
    params: SamplingParams
    prompt_token_ids: list[int]
    new_message: Callable[[], MessageText]


async def chat_turn(request: Request, conversation: Conversation, wishes: Wishes, model: LoadedModel) -> ChatTurn:
    """The turn, ready to run; raises `InvalidRequest`."""
    offer = tool_offer(conversation.tools, model)
    text, token_ids = await _fitting_prompt(conversation, wishes, offer, model)
    fields = wishes.fields
    token_ids = truncated(token_ids, fields, model)
    forced = offer.constraint
    form = await grammar_for(fields, model, [*([] if forced is None else [forced]), *wishes.forms])
    calls = await held_calls(offer, model, text, form)
    if calls.loose:
        note_ignored(request, calls.loose)
    max_tokens = wishes.room(len(token_ids))
    params = await in_thread(
        False,
        lambda: sampling_params(
            fields,
            model,
            max_tokens=max_tokens,
            logprobs=wishes.logprobs,
            prompt_logprobs=fields.prompt_logprobs,
            cache_salt=cache_salt(request, fields),
            grammar=calls.grammar,
        ),
    )
    special = model.tokenizer.special_ids(model.format.marks(with_tools=bool(offer.tools)))
    # A form is the form of the whole answer: no thought goes before it, whatever the prompt has begun.
    free_parser = model.format.parser(
        text if form is None else "",
        tools=offer.schemas if offer.tools else None,
        special=frozenset(special) if fields.skip_special_tokens else frozenset(),
    )
    script = offer.script

    def parser() -> AnswerParser:
        if script is not None:
            return AnswerParser(script)
        return free_parser() if form is None or calls.or_form else AnswerParser(plain, exact=True)

    return ChatTurn(
        generation=Generation(serving_of(request), model, [Job(token_ids, params)], kept=frozenset(special.values())),
        params=params,
        prompt_token_ids=token_ids,
        new_message=lambda: MessageText(
            parser(),
            show_reasoning=wishes.show_reasoning,
            max_calls=None if conversation.tools.parallel else 1,
            short_ids=model.format.short_ids,
            named=offer.named is not None,
        ),
    )


async def plain_turn(
    request: Request,
    token_ids: list[int],
    wishes: Wishes,
    model: LoadedModel,
    *,
    also_stop_at: Collection[int] = (),
) -> ChatTurn:
    """A turn that goes on from a text instead of a conversation; all that comes is shown. Raises `InvalidRequest`."""
    max_tokens = wishes.room(len(token_ids))
    grammar = await grammar_for(wishes.fields, model, wishes.forms)
    params = await in_thread(
        False,
        lambda: sampling_params(
            wishes.fields,
            model,
            max_tokens=max_tokens,
            logprobs=wishes.logprobs,
            prompt_logprobs=None,
            cache_salt=cache_salt(request, wishes.fields),
            grammar=grammar,
            also_stop_at=also_stop_at,
        ),
    )
    return ChatTurn(
        generation=Generation(serving_of(request), model, [Job(token_ids, params)]),
        params=params,
        prompt_token_ids=token_ids,
        new_message=lambda: MessageText(
            AnswerParser(plain, exact=True), show_reasoning=True, max_calls=None, short_ids=False, named=False
        ),
    )


async def prompt_token_ids(conversation: Conversation, model: ServedModel) -> list[int]:
    """The prompt of a turn that is not to run; raises `InvalidRequest`."""
    return (await _prompt(conversation, tool_offer(conversation.tools, model), model, to_fit=False))[1]


async def _fitting_prompt(
    conversation: Conversation, wishes: Wishes, offer: ToolOffer, model: ServedModel
) -> tuple[str, list[int]]:
    # What is cut must be known to its end.
    to_fit = wishes.fields.truncate_prompt_tokens is None
    prompt = await _prompt(conversation, offer, model, to_fit=to_fit)
    if not conversation.may_drop or _fits(prompt[1], wishes):
        return prompt
    # What is left begins with words of the user: templates take no other beginning. As little as possible is dropped.
    messages = conversation.messages
    starts = [number for number, message in enumerate(messages) if message.role == "user"]
    low, high = 1, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        kept = [
            message
            for number, message in enumerate(messages)
            if number >= starts[middle] or message.role in ("system", "developer")
        ]
        shorter = await _prompt(dataclasses.replace(conversation, messages=kept), offer, model, to_fit=to_fit)
        if _fits(shorter[1], wishes):
            prompt, high = shorter, middle - 1
        else:
            low = middle + 1
    return prompt


def _fits(token_ids: list[int], wishes: Wishes) -> bool:
    try:
        wishes.room(len(token_ids))
    except ContextLengthExceeded:
        return False
    return True


async def _prompt(
    conversation: Conversation, offer: ToolOffer, model: ServedModel, *, to_fit: bool
) -> tuple[str, list[int]]:
    text = await chat_prompt(
        conversation.messages,
        model,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        extra=conversation.variables,
        tools=[tool.for_template() for tool in offer.tools] or None,
    )
    special = conversation.add_special_tokens
    return text, await model.encode(text, add_special_tokens=special, param=conversation.param, to_fit=to_fit)
