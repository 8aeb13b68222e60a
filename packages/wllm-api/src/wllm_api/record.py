"""What is noted of one HTTP request while it is served: figures and times, never what it says.

`middleware.requests` opens a record and gives it to the log, the metrics and the tracer at the end. Whoever computes
for the request writes into the current one; outside of a request that is one that nobody reads.
"""

from __future__ import annotations

from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from wllm_api.request_times import RequestTimes

SAMPLED_EVERY = 16
MAX_SAMPLED = 256


class Step(NamedTuple):
    """A sampled step of one answer, in seconds of `perf_counter`: the token before, this one, its text at hand."""

    choice: int
    number: int
    before: float
    arrived: float
    text_ready: float


class Steps:
    """Every `SAMPLED_EVERY`th step of each answer, no more than `MAX_SAMPLED` in all."""

    def __init__(self) -> None:
        self.sampled: list[Step] = []
        self._last: dict[int, tuple[int, float]] = {}

    def note(self, choice: int, arrived: float) -> None:
        """Note that tokens of a choice arrived, and that their text is ready now."""
        now = perf_counter()
        number, before = self._last.get(choice, (0, arrived))
        self._last[choice] = (number + 1, arrived)
        if number and number % SAMPLED_EVERY == 0 and len(self.sampled) < MAX_SAMPLED:
            self.sampled.append(Step(choice, number, before, arrived, now))


@dataclass(slots=True)
class RequestRecord:
    """The figures of one request; `times` has one entry an answer, `steps` is None unless they are traced.

    `model` is as the request named it, `served_by` the name that metrics show of it. `at_end` is closed when the
    request is over, however it went.
    """

    started: float = field(default_factory=perf_counter)
    model: str | None = None
    served_by: str | None = None
    num_body_bytes: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    times: list[RequestTimes] = field(default_factory=list)
    steps: Steps | None = None
    at_end: ExitStack = field(default_factory=ExitStack)


_current: ContextVar[RequestRecord | None] = ContextVar("wllm_request_record", default=None)


def open_record() -> RequestRecord:
    """A new record, current in this task and those that it starts."""
    record = RequestRecord()
    _current.set(record)
    return record


def current_record() -> RequestRecord:
    """The record of the request that this code works for."""
    return _current.get() or RequestRecord()
