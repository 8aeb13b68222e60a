"""One request's events on their way from the engine process to its reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from wllm_sched.messages import Abort, TokenEvent
from wllm_sched.plan import TokenLogprobs

# What is done with a token takes its time, with log-probabilities much of it, and nobody else is served meanwhile.
MAX_TOKENS_AT_ONCE = 256


class _Backlog:
    # Several events of one sample, waiting as one: lists grow by what the tokens need, not by an event for each.

    def __init__(self, event: TokenEvent) -> None:
        self._last = event
        self._token_ids = list(event.token_ids)
        self._logprobs: list[TokenLogprobs] | None = None if event.logprobs is None else list(event.logprobs)
        self._num_taken = 0
        self._prompt_logprobs = event.prompt_logprobs
        self._num_cached_tokens = event.num_cached_tokens
        self._start_times = event.start_times

    def add(self, event: TokenEvent) -> None:
        self._last = event
        self._token_ids += event.token_ids
        if event.logprobs:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += event.logprobs
        self._num_cached_tokens = max(self._num_cached_tokens, event.num_cached_tokens)
        self._start_times = self._start_times or event.start_times

    @property
    def is_long(self) -> bool:
        """Whether it is more than is taken at once."""
        return len(self._token_ids) - self._num_taken > MAX_TOKENS_AT_ONCE

    def take(self) -> TokenEvent:
        """The next tokens as one event; how the sample ended is told with the last of them."""
        taken = slice(self._num_taken, self._num_taken + MAX_TOKENS_AT_ONCE)
        last = TokenEvent(self._last.request_id, self._last.index) if self.is_long else self._last
        event = replace(
            last,
            token_ids=tuple(self._token_ids[taken]),
            logprobs=None if self._logprobs is None else tuple(self._logprobs[taken]),
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens,
            start_times=self._start_times,
        )
        self._num_taken += MAX_TOKENS_AT_ONCE
        self._prompt_logprobs = self._start_times = None
        return event


class RequestStream(AsyncIterator[TokenEvent]):
    """Async iterator over the events of one request; it always ends, each sample with one final event.

    Memory is bounded for a reader that does not read: the events that wait are merged, and read in pieces of
    `MAX_TOKENS_AT_ONCE`. Belongs to the event loop of its `EngineProcess`, which calls `deliver` and `fail`.
    """

    def __init__(self, request_id: int, num_samples: int, send: Callable[[Abort], None]) -> None:
        self.request_id = request_id
        self._open = set(range(num_samples))
        self._waiting: dict[int, TokenEvent | _Backlog] = {}
        self._has_rest = False
        self._arrived = asyncio.Event()
        self._send = send

    @property
    def finished(self) -> bool:
        """Whether the final event of every sample has arrived, read or not."""
        return not self._open

    async def __anext__(self) -> TokenEvent:
        while not self._waiting:
            if not self._open:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        if self._has_rest:
            self._has_rest = False
            await asyncio.sleep(0)  # others first
        index = next(iter(self._waiting))
        waiting = self._waiting.pop(index)
        if isinstance(waiting, TokenEvent):
            return waiting
        if waiting.is_long:
            self._has_rest = True
            self._waiting[index] = waiting
        return waiting.take()

    def abort(self, index: int | None = None) -> None:
        """End the request, or its sample `index`, in the engine; its final events still come. Never blocks."""
        if self._open if index is None else index in self._open:
            self._send(Abort(self.request_id, index))

    def expects(self, index: int) -> bool:
        """Whether sample `index` is still to get its final event."""
        return index in self._open

    def deliver(self, event: TokenEvent) -> None:
        """Take an event from the engine."""
        assert self.expects(event.index), "I13: a sample gets nothing after its final event"
        waiting = self._waiting.get(event.index)
        if waiting is None:
            self._waiting[event.index] = event
        elif isinstance(waiting, TokenEvent):
            self._waiting[event.index] = backlog = _Backlog(waiting)
            backlog.add(event)
        else:
            waiting.add(event)
        if event.finish_reason is not None:
            self._open.remove(event.index)
        self._arrived.set()

    def fail(self, text: str, code: str) -> None:
        """End every sample that is still open with an error event."""
        for index in sorted(self._open):
            self.deliver(TokenEvent(self.request_id, index, finish_reason="error", error=text, error_code=code))
