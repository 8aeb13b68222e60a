"""`Grammars`: compiles grammars for the scheduler with llguidance, in a thread of its own.

A matcher cannot be sent from the API's process, which has checked the same grammar: it is compiled here again, for the
tokens of the model. Every answer to the same grammar begins with a copy of one matcher.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from wllm_runtime.lazy_matcher import LazyMatcher
from wllm_runtime.number_limit import NumberLimit
from wllm_sched.errors import GrammarFailed, TokenNotAllowed
from wllm_sched.grammar import Grammar, Matcher

_MAX_KEPT = 64
# Compiled, a grammar takes up to 1.5 KiB for each character of its text.
_MAX_KEPT_CHARACTERS = 256 * 1024
# Others wait for each token of an answer, so one that takes longer than this takes from what the answer may waste. The
# hardest JSON schemas known take 15 ms; a slow processor, or Python cleaning up meanwhile, is no reason to fail.
_FAIR_TOKEN_S, _MAX_WASTE_S = 0.02, 0.25


class TokenMatcher:
    """A place in a grammar of llguidance, over the model's `num_words` * 32 token ids or fewer."""

    def __init__(self, inner: LLMatcher, num_words: int, limit: NumberLimit | None) -> None:
        self._inner = inner
        self._num_bytes = 4 * num_words
        self._limit = limit
        self._wasted_s = 0.0
        self._mask = self._next_mask()

    @property
    def mask(self) -> bytes:
        """The tokens that may come next."""
        return self._mask

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._inner.is_stopped())

    def accept(self, token_id: int) -> None:
        """Move on by a token; raises `GrammarFailed`."""
        start = time.thread_time()
        if not self._inner.consume_token(token_id):
            raise TokenNotAllowed(f"The answer left its grammar at token {token_id}: {_why(self._inner)}.")
        if self._limit is not None:
            self._limit.accept(token_id)
        self._mask = self._next_mask()
        taken = time.thread_time() - start
        self._wasted_s += max(0.0, taken - _FAIR_TOKEN_S)
        if self._wasted_s > _MAX_WASTE_S:
            raise GrammarFailed(
                f"The grammar is too hard to follow: the last token took {1000 * taken:.0f} ms, and in all an answer "
                f"may take {1000 * _MAX_WASTE_S:.0f} ms more than {1000 * _FAIR_TOKEN_S:.0f} a token. Use a simpler "
                "grammar."
            )

    def copy(self) -> TokenMatcher:
        """Another matcher at the same place."""
        twin = object.__new__(TokenMatcher)
        twin._inner = self._inner.deep_copy()
        twin._num_bytes, twin._mask, twin._wasted_s = self._num_bytes, self._mask, self._wasted_s
        twin._limit = None if self._limit is None else self._limit.copy()
        return twin

    def _next_mask(self) -> bytes:
        if self._inner.is_stopped() and not self._inner.is_error():
            return bytes(self._num_bytes)
        mask = self._inner.compute_bitmask()
        if self._inner.is_error():
            raise GrammarFailed(
                f"The grammar is too hard to follow from here: {_why(self._inner)}. Use a simpler grammar."
            )
        if self._limit is not None:
            mask = self._limit.applied(mask)
        # Ids that only the model has are never allowed, and those that only the tokenizer has cannot be drawn.
        return mask[: self._num_bytes].ljust(self._num_bytes, b"\0")


class Grammars:
    """Compiles for the tokenizer in `tokenizer_json`, which is loaded with the first grammar or by `load`."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._num_words = -(-vocab_size // 32)
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: tuple[LLTokenizer, NumberLimit] | None = None
        self._kept: OrderedDict[Grammar, Matcher] = OrderedDict()
        self._num_characters = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wllm-grammar")

    def load(self) -> None:
        """Load the tokenizer: a second of work that lets no other thread run. One that does not load fails grammars."""
        with suppress(GrammarFailed):
            self._loaded()

    def compile(self, grammar: Grammar) -> Future[Matcher]:
        """A matcher, some time later; its future may hold `GrammarFailed`."""
        return self._thread.submit(self._compile, grammar)

    def close(self) -> None:
        """Start nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> Matcher:
        matcher = self._kept.get(grammar)
        if matcher is None:
            matcher = self._kept[grammar] = self._new(grammar)
            self._num_characters += len(grammar.text)
            while len(self._kept) > 1 and (len(self._kept) > _MAX_KEPT or self._num_characters > _MAX_KEPT_CHARACTERS):
                dropped, _ = self._kept.popitem(last=False)
                self._num_characters -= len(dropped.text)
        self._kept.move_to_end(grammar)
        return matcher.copy()

    def _new(self, grammar: Grammar) -> Matcher:
        tokenizer, number_limit = self._loaded()
        limits = LLParserLimits(**grammar.limits)
        inner = LLMatcher(tokenizer, grammar.text, log_level=0, limits=limits)
        if inner.is_error():
            raise GrammarFailed(f"The grammar cannot be compiled: {_why(inner)}.")
        matcher = TokenMatcher(inner, self._num_words, number_limit.copy() if grammar.bounds_numbers else None)
        if grammar.opening is None:
            return matcher

        def text_of(token_id: int) -> bytes:
            # Ids that only the model has are no text.
            return bytes(tokenizer.decode_bytes([token_id])) if 0 <= token_id < tokenizer.vocab_size else b""

        return LazyMatcher(matcher, grammar.opening, text_of=text_of, tokens_of=tokenizer.tokenize_bytes)

    def _loaded(self) -> tuple[LLTokenizer, NumberLimit]:
        if self._tokenizer is None:
            try:
                tokenizer = LLTokenizer(self._tokenizer_json, eos_token=self._eos_token_ids or None)
                self._tokenizer = tokenizer, NumberLimit.of(tokenizer)
            except Exception as error:  # the library raises bare ones
                raise GrammarFailed(f"No answer can follow a grammar with this model's tokenizer: {error}.") from error
        return self._tokenizer


def _why(matcher: LLMatcher) -> str:
    # What follows the first line is the library's own state.
    return (matcher.get_error() or str(matcher.stop_reason())).partition("\n")[0].rstrip(".")
