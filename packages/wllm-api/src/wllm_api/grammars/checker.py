"""`GrammarChecker`: compiles grammars on trial, so that a bad one is refused before the engine hears of it.

Its limits of size are the compiler's own. A thread cannot be stopped, so `trial` compiles first, where it can be.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from wllm_api.errors import GrammarError
from wllm_api.grammars.constraint import Constraint
from wllm_api.grammars.notation import MAX_CHARACTERS, grammar_of, schema_grammar, spelled_out
from wllm_api.grammars.schema_rules import Schema, check_schema, subschemas
from wllm_api.grammars.trial import try_grammar
from wllm_api.http_errors import Unavailable
from wllm_sched.grammar import Grammar

T = TypeVar("T")

TIMEOUT_S = 10.0
_MAX_KEPT = 256
_MAX_PROBLEM = 500
# Looking for the place of an error may compile a schema once for each of its parts.
_PLACE_S = 1.0


class GrammarChecker:
    """Checks for one tokenizer, in threads of its own; remembers what it has found good."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer_json = tokenizer_json
        self._tokenizer: LLTokenizer | None = None
        self._special_names: list[str] | None = None
        self._lock = threading.Lock()
        self._good: OrderedDict[tuple[str, bool], None] = OrderedDict()
        self._thread: ThreadPoolExecutor | None = None

    def load(self) -> None:
        """Load the tokenizer: a second of work that lets no other thread run. One that does not load fails `check`."""
        with suppress(GrammarError):
            self._loaded()

    async def check(self, constraint: Constraint) -> Grammar:
        """The constraint's grammar, which the engine can follow; raises `GrammarError`."""
        return await self.in_thread(lambda: self.check_now(constraint))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """The result of `work`, which may use the methods that end in `_now`.

        Raises `GrammarError`, and `Unavailable` where the work of others left it no time.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=4, thread_name_prefix="wllm-grammar")
        begun: list[float] = []

        def tried() -> T | _Refusal:
            begun.append(time.perf_counter())
            return _tried(work)

        until = time.perf_counter() + TIMEOUT_S
        coming = asyncio.get_running_loop().run_in_executor(self._thread, tried)
        try:
            found = await asyncio.wait_for(coming, TIMEOUT_S)
        except TimeoutError:
            if not begun or until - begun[0] < TIMEOUT_S / 2:
                raise Unavailable(
                    "The grammars of other requests are still being compiled. Try again in a moment.",
                    code="server_is_overloaded",
                ) from None
            raise GrammarError(f"It was not compiled within {TIMEOUT_S:g} s. Use a simpler one.") from None
        if isinstance(found, _Refusal):
            raise GrammarError(found.text)
        return found

    def check_now(self, constraint: Constraint) -> Grammar:
        """The same, in the calling thread."""
        grammar = grammar_of(constraint)
        try:
            return self.check_grammar_now(grammar)
        except GrammarError as error:
            if constraint.kind != "json":
                raise
            problem = str(error).removesuffix(".")
            raise GrammarError(f"{problem}{self._place(constraint.value, problem)}.") from None

    def check_grammar_now(self, grammar: Grammar) -> Grammar:
        """The grammar, in a way that the engine can follow; raises `GrammarError`."""
        if len(grammar.text) > MAX_CHARACTERS:
            raise GrammarError(f"It has {len(grammar.text):,} characters; the limit is {MAX_CHARACTERS:,}. Send less.")
        if self._holds_special_name(grammar):
            grammar = spelled_out(grammar)
        key = (grammar.text, grammar.is_free)
        with self._lock:
            if key in self._good:
                self._good.move_to_end(key)
                return grammar
        if problem := self._problem(grammar):
            raise GrammarError(f"{problem}.")
        with self._lock:
            self._good[key] = None
            while len(self._good) > _MAX_KEPT:
                self._good.popitem(last=False)
        return grammar

    def token_of_now(self, text: str) -> int | None:
        """The id of a text that is one special token as grammars see it; raises `GrammarError`."""
        tokenizer = self._loaded()
        ids = tokenizer.tokenize_str(text, parse_special=True)
        return ids[0] if len(ids) == 1 and tokenizer.is_special_token(ids[0]) else None

    def _holds_special_name(self, grammar: Grammar) -> bool:
        if self._special_names is None:
            tokenizer = self._loaded()
            special = filter(tokenizer.is_special_token, range(tokenizer.vocab_size))
            self._special_names = [name for one in special if (name := tokenizer.decode_str([one]).replace("\\", ""))]
        text = grammar.text.replace("\\", "")  # names may be escaped in it
        return any(name in text for name in self._special_names)

    def _loaded(self) -> LLTokenizer:
        if self._tokenizer is None:
            try:
                self._tokenizer = LLTokenizer(self._tokenizer_json)
            except Exception as error:  # the library raises bare ones
                raise GrammarError(f"No grammar can be used with this model's tokenizer: {error}.") from error
        return self._tokenizer

    def _problem(self, grammar: Grammar) -> str:
        try_grammar(grammar)
        limits = LLParserLimits(**grammar.limits)
        matcher = LLMatcher(self._loaded(), grammar.text, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if not matcher.is_error():
            return "It allows no answer at all" if matcher.is_stopped() and not matcher.is_accepting() else ""
        # Some repeat the whole grammar, or name all special tokens.
        text = matcher.get_error().partition("<state>")[0].strip()[:_MAX_PROBLEM]
        if text == "NoExtensionBias":
            return "It allows no answer at all"
        return " ".join(text.split()).rstrip(".") or str(matcher.stop_reason())

    def _place(self, value: object, problem: str) -> str:
        # The innermost schema that is refused for the same reason; definitions come along, as references need them.
        schema = check_schema(json.loads(value) if isinstance(value, str) else value)
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        found = ""
        until = time.perf_counter() + _PLACE_S
        for place, part in subschemas(schema):
            if time.perf_counter() > until:
                break
            if place and self._problem(_alone(part, shared)) == problem:
                found = place
        return f" (at {found} of the schema)" if found else ""


@dataclass(frozen=True, slots=True)
class _Refusal:
    text: str


def _tried(work: Callable[[], T]) -> T | _Refusal:
    # As a value: an error that `wait_for` raises holds its frame, and with it itself and the whole request, until the
    # garbage collector looks at old objects.
    try:
        return work()
    except GrammarError as error:
        return _Refusal(str(error))


def _alone(part: Schema, shared: Schema) -> Grammar:
    return schema_grammar({**part, **shared})
