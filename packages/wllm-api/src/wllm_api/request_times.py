"""The clock of one answer: what the metrics observe, and what the log, the traces and `timings` tell."""

from __future__ import annotations

import time

from wllm_api.metrics import ModelMetrics
from wllm_sched.messages import StartTimes


class RequestTimes:
    """The clock of one answer, from its creation on: `start`, `first` and `last` token in seconds of `perf_counter`."""

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self.start = time.perf_counter()
        self.first: float | None = None
        self.last = self.start
        self.queue_s: float | None = None
        self.prefill_s: float | None = None
        self._finished = False

    @property
    def first_token_s(self) -> float | None:
        """Seconds to the first token; None before it."""
        return None if self.first is None else self.first - self.start

    @property
    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self._finished

    def tokens(self, count: int) -> None:
        """Note that `count` tokens have come."""
        if not count:
            return
        now = time.perf_counter()
        if self.first is None:
            self.first = now
            self._metrics.first_token.observe(now - self.start)
        else:
            self._metrics.between_tokens.observe((now - self.last) / count)
        self.last = now

    def started(self, times: StartTimes) -> None:
        """Note what the engine says of the time before the first token."""
        self.queue_s, self.prefill_s = times
        self._metrics.queue.observe(times.queue_s)
        self._metrics.prefill.observe(times.prefill_s)

    def end(self, reason: str, num_tokens: tuple[int, int]) -> None:
        """Note the end of the answer, with its prompt and answer tokens; only the first end counts."""
        if self._finished:
            return
        self._finished = True
        metrics = self._metrics
        metrics.count_finished(reason)
        now = time.perf_counter()
        metrics.whole.observe(now - self.start)
        if self.queue_s is not None:
            metrics.inference.observe(now - self.start - self.queue_s)
        if self.first is not None:
            metrics.decode.observe(now - self.first)
            if num_tokens[1] > 1:
                metrics.per_token.observe((self.last - self.first) / (num_tokens[1] - 1))
        metrics.prompt_tokens.observe(num_tokens[0])
        metrics.generation_tokens.observe(num_tokens[1])
