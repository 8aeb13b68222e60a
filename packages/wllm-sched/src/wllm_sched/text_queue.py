"""`TextQueue`: which texts a pooling engine takes next.

Owns the texts that wait and the turns of their requests: each request gives one text in turn, so that a request of
thousands does not hold up one of a single text. Pure; knows no model. The engine's thread calls it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from wllm_sched.messages import Abort, TokenEvent
from wllm_sched.pooling import Pool, PooledText


@dataclass(frozen=True, slots=True)
class QueuedText:
    """Text `index` of `request`."""

    request: Pool
    index: int

    @property
    def text(self) -> PooledText:
        """Its tokens."""
        return self.request.texts[self.index]

    @property
    def length(self) -> int:
        """Its number of tokens."""
        return len(self.text.token_ids)


class TextQueue:
    """Waiting texts, handed out in steps of at most `max_texts` texts and `max_tokens` tokens, or one longer text."""

    def __init__(self, max_texts: int, max_tokens: int) -> None:
        self._max_texts = max_texts
        self._max_tokens = max_tokens
        self._waiting: dict[int, deque[QueuedText]] = {}
        self._turns: deque[int] = deque()
        self._aborted: list[TokenEvent] = []

    @property
    def has_work(self) -> bool:
        """Whether a text or the event of an aborted one waits."""
        return bool(self._waiting or self._aborted)

    @property
    def num_waiting(self) -> int:
        """Texts that wait."""
        return sum(map(len, self._waiting.values()))

    def push(self, request: Pool) -> None:
        """Queue the texts of a request."""
        if not request.texts:
            return
        texts = (QueuedText(request, index) for index in range(len(request.texts)))
        # Neighbours of one length waste little on padding.
        self._waiting[request.request_id] = deque(sorted(texts, key=lambda queued: queued.length))
        self._turns.append(request.request_id)

    def abort(self, abort: Abort) -> None:
        """Drop a request, or its text `index`; unknown ones and those that were handed out are ignored."""
        texts = self._waiting.get(abort.request_id, deque())
        for queued in [*texts]:
            if abort.index in (None, queued.index):
                texts.remove(queued)
                self._aborted.append(TokenEvent(abort.request_id, queued.index, finish_reason="abort"))
        if not texts and self._waiting.pop(abort.request_id, None) is not None:
            self._turns.remove(abort.request_id)

    def take_aborted(self) -> list[TokenEvent]:
        """The final events of texts that were dropped since the last call."""
        aborted, self._aborted = self._aborted, []
        return aborted

    def take(self) -> list[QueuedText]:
        """The texts of the next step, one request after the other; empty when none waits."""
        taken: list[QueuedText] = []
        num_tokens = 0
        while self._turns and len(taken) < self._max_texts:
            request_id = self._turns[0]
            texts = self._waiting[request_id]
            num_tokens += texts[0].length
            if taken and num_tokens > self._max_tokens:
                break
            taken.append(texts.popleft())
            self._turns.popleft()
            if texts:
                self._turns.append(request_id)
            else:
                del self._waiting[request_id]
        return taken
