"""The grammar that holds the calls of a free answer to the schemas of their tools.

A tool with `strict` is held to its schema or refused. Any other is held as far as can be: where its schema cannot be
kept its arguments are an object of any kind, and the client is told so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from wllm_api.errors import GrammarError
from wllm_api.grammars.checker import TIMEOUT_S
from wllm_api.grammars.notation import kept_schema
from wllm_api.grammars.schema_rules import Schema
from wllm_api.http_errors import InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.tool_offer import ToolOffer
from wllm_api.tools import NotHeld, arguments_schema
from wllm_sched.grammar import Grammar

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeldCalls:
    """`grammar` None: the calls are free. `loose`: the request's fields that are not kept.

    `or_form`: the answer is calls or of the form that was asked for.
    """

    grammar: Grammar | None = None
    loose: tuple[str, ...] = ()
    or_form: bool = False


async def held_calls(offer: ToolOffer, model: ServedModel, prompt: str, form: Grammar | None = None) -> HeldCalls:
    """For an answer to `prompt` that may call the tools on offer, or has a `form`; raises `InvalidRequest`."""
    if not offer.tools or offer.script is not None:
        return HeldCalls(form)
    if form is not None and model.format.tools == "harmony":
        # A form takes the place of its messages, in which alone there are calls.
        return HeldCalls(form, ("tools",))
    holder = _Holder(offer, model, prompt, form)
    try:
        return await model.grammars.in_thread(holder.hold)
    except (GrammarError, NotHeld) as error:
        if form is not None:
            return HeldCalls(form, ("tools",))
        # Even without schemas nothing can be held: the tokenizer is of a kind that grammars do not know, for instance.
        for tool in offer.tools:
            if tool.function.strict:
                place = offer.places[tool.name]
                raise InvalidRequest(f"'tools' cannot be held to 'strict': {error}", param=place) from None
        logger.warning("tool calls are not held to their schemas: %s", error)
        return HeldCalls(None, tuple(offer.places[tool.name] for tool in offer.tools))


class _Holder:
    def __init__(self, offer: ToolOffer, model: ServedModel, prompt: str, form: Grammar | None) -> None:
        self._form = form
        self._offer = offer
        self._model = model
        self._prompt = prompt

    def hold(self) -> HeldCalls:
        """Try all schemas together, then one by one; raises `GrammarError`, `NotHeld`, `InvalidRequest`."""
        schemas: dict[str, Schema] = {}
        loose: list[str] = []
        try:
            grammar = self._held(
                {name: kept_schema(arguments_schema(schema)) for name, schema in self._offer.schemas.items()}
            )
            return HeldCalls(grammar, or_form=self._form is not None)
        except (GrammarError, NotHeld):
            pass
        until = time.perf_counter() + TIMEOUT_S
        for tool in self._offer.tools:
            if time.perf_counter() > until:  # nobody waits for it any more, but others for the thread
                raise GrammarError(f"They were not compiled within {TIMEOUT_S:g} s. Use simpler ones.")
            name = tool.name
            place = self._offer.places[name]
            try:
                schemas[name] = kept_schema(arguments_schema(self._offer.schemas[name]))
                self._held({name: schemas[name]})
            except (GrammarError, NotHeld) as error:
                if tool.function.strict:
                    raise InvalidRequest(
                        f"'{place}' cannot be held to, as 'strict' asks: {error} Simplify the schema, or "
                        "leave 'strict' out.",
                        param=place,
                    ) from None
                schemas[name] = {}
                loose.append(place)
        return HeldCalls(self._held(schemas), tuple(loose), or_form=self._form is not None)

    def _held(self, schemas: Mapping[str, Schema]) -> Grammar | None:
        grammars = self._model.grammars
        grammar = self._model.format.held_calls(
            self._prompt,
            schemas,
            parallel=self._offer.parallel,
            token_of=grammars.token_of_now,
            other=self._form,
        )
        return None if grammar is None else grammars.check_grammar_now(grammar)
