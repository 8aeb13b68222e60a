"""The text of an answer, token by token: the engine's events hold one token or several, as it happens."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

from wllm_api.answers.base import Gained
from wllm_sched.plan import TokenLogprobs


class TokenTexts:
    """Takes apart what one choice gains; what is read part by part does not depend on how events were cut."""

    def __init__(self) -> None:
        self._position = 0
        self._coming: deque[tuple[int, TokenLogprobs | None]] = deque()

    def parts(self, gained: Gained) -> Iterator[tuple[str, list[TokenLogprobs | None]]]:
        """Texts, each with the log-probabilities (None unless asked for) of the tokens that begin there.

        A part may be empty. With the end come the tokens whose text a stop string has cut off.
        """
        self._coming.extend(itertools.zip_longest(gained.offsets, gained.logprobs))
        start, first, last = 0, self._position, self._position + len(gained.text)
        while True:
            begun = []
            while self._coming and self._coming[0][0] <= self._position:
                begun.append(self._coming.popleft()[1])
            self._position = min(self._coming[0][0], last) if self._coming else last
            end = self._position - first
            yield gained.text[start:end], begun
            start = end
            if self._position == last:
                break
        if gained.finish_reason is not None:
            yield "", [row for _, row in self._coming]
