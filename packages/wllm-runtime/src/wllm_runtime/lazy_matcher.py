"""`LazyMatcher`: an answer that is free until a grammar begins in it, such as the grammar of a tool call.

While the answer is free all tokens are allowed, its end too, and nothing is computed but a search in the newest text.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

from wllm_sched.errors import TokenNotAllowed
from wllm_sched.grammar import Matcher, Opening

# The newest text that is searched: longer than anything that begins a grammar.
_WINDOW = 512


class LazyMatcher:
    """`begun` stands where the grammar begins; `text_of` gives a token's bytes, `tokens_of` some tokens of a text."""

    def __init__(
        self,
        begun: Matcher,
        opening: Opening,
        *,
        text_of: Callable[[int], bytes],
        tokens_of: Callable[[bytes], list[int]],
    ) -> None:
        self._begun = begun
        self._patterns = _Patterns(opening)
        self._repeats = opening.repeats
        self._text_of = text_of
        self._tokens_of = tokens_of
        self._inner: Matcher | None = None
        self._in_thought = opening.thought_begun
        self._finished = False
        self._text = b""
        self._tokens: list[tuple[int, int]] = []  # ids, and where each ends in the text
        self._at_start = True

    @property
    def mask(self) -> bytes | None:
        """The tokens that may come next; None for all."""
        return None if self._inner is None else self._inner.mask

    @property
    def is_finished(self) -> bool:
        """Whether the grammar was to be followed once, and has been."""
        return self._finished

    def accept(self, token_id: int) -> None:
        """Move on by a token; raises `GrammarFailed`."""
        if self._inner is not None:
            self._inner.accept(token_id)
            self._leave_if_complete()
            return
        self._text += self._text_of(token_id)
        self._tokens.append((token_id, len(self._text)))
        while self._take_mark():
            pass
        if len(self._text) > 2 * _WINDOW:
            self._drop(len(self._text) - _WINDOW, at_start=False)

    def copy(self) -> LazyMatcher:
        """Another matcher at the same place."""
        twin = copy.copy(self)
        twin._inner = None if self._inner is None else self._inner.copy()
        twin._tokens = self._tokens.copy()
        return twin

    def _take_mark(self) -> bool:
        # The first thing in the text that means something; False when there is none (yet).
        patterns = self._patterns
        if self._at_start and not self._in_thought:
            if patterns.thought_start is not None and (found := patterns.thought_start.match(self._text)):
                self._in_thought = True
                self._drop(found.end(), at_start=True)
                return True
            if patterns.at_start is not None and (found := patterns.at_start.match(self._text)):
                return self._begin(found)
        found = (patterns.in_thought if self._in_thought else patterns.begins).search(self._text)
        end = patterns.thought_end.search(self._text) if self._in_thought and patterns.thought_end else None
        if end is not None and (found is None or end.start() < found.start()):
            self._in_thought = False
            self._drop(end.end(), at_start=True)
            return True
        return found is not None and self._begin(found)

    def _begin(self, found: re.Match[bytes]) -> bool:
        # True when what follows is free all the same, and may have a mark. Of a token that reaches beyond the mark, the
        # rest is tokenized anew: the grammar judges characters.
        start = found.end("mark")
        inner, before = self._begun.copy(), 0
        try:
            for token_id, end in self._tokens:
                if before >= start:
                    inner.accept(token_id)
                elif end > start:
                    for part in self._tokens_of(self._text[start:end]):
                        inner.accept(part)
                before = end
        except TokenNotAllowed:
            self._drop(found.end(), at_start=False)
            return True
        self._drop(len(self._text), at_start=True)
        self._inner = inner
        self._leave_if_complete()
        return False

    def _leave_if_complete(self) -> None:
        if self._inner is not None and self._inner.is_finished:
            self._inner = None
            self._finished = not self._repeats

    def _drop(self, count: int, *, at_start: bool) -> None:
        self._text = self._text[count:]
        self._tokens = [(token_id, end - count) for token_id, end in self._tokens if end > count]
        self._at_start = at_start


class _Patterns:
    """The opening's expressions, for bytes."""

    def __init__(self, opening: Opening) -> None:
        self.begins = re.compile(opening.begins.encode("utf-8"))
        self.in_thought = re.compile(opening.in_thought.encode("utf-8"))
        self.at_start = None if opening.at_start is None else re.compile(opening.at_start.encode("utf-8"))
        self.thought_start = self.thought_end = None
        if opening.thought is not None:
            start, end = (re.escape(mark.encode("utf-8")) for mark in opening.thought)
            self.thought_start, self.thought_end = re.compile(rb"\s*" + start), re.compile(end)
