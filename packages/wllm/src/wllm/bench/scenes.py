"""Stretches of steps of one kind, for the profile: decode steps of a steady batch, and prefills."""

from __future__ import annotations

from typing import Protocol

from wllm.bench.driver import Driver
from wllm.bench.errors import BenchError
from wllm.bench.lengths import PromptMaker
from wllm_sched import Abort

_SETTLED = 8  # steps of the whole batch before the stretch begins
_PREFILLS = 5


class Scene(Protocol):
    """`prepare`, then `act`, which is what is looked at, then `clear_up`; may be repeated.

    Nothing is in flight before and after `act`, so whatever is counted meanwhile belongs to its steps.
    """

    what: str

    def prepare(self) -> None:
        """Bring the engine to where the stretch begins."""

    def act(self) -> None:
        """Run the stretch."""

    def clear_up(self) -> None:
        """Leave nothing in the engine."""


class DecodeScene:
    """`steps` steps in which `batch` requests decode and nothing else happens."""

    def __init__(self, driver: Driver, prompts: PromptMaker, batch: int, prompt_len: int, steps: int) -> None:
        self.what = f"decode step, batch {batch} ({prompt_len:,} in)"
        self._driver, self._prompts = driver, prompts
        self._batch, self._prompt_len, self._steps = batch, prompt_len, steps
        self._ids: list[int] = []

    def prepare(self) -> None:
        """Start the batch; wait until all of it decodes."""
        engine = self._driver.engine
        longest = engine.model_info.max_model_len - self._prompt_len
        # The first to start decode while the last still wait: they need tokens for that time too.
        wanted = self._steps + _SETTLED + self._batch + 16
        if wanted > longest:
            raise BenchError(
                f"{self._steps} steps after {self._prompt_len} tokens need a context of {self._prompt_len + wanted}, "
                f"this engine has {engine.model_info.max_model_len}; lower --steps or --prompt-len"
            )
        self._ids = [self._driver.submit(self._prompts.one(self._prompt_len), longest) for _ in range(self._batch)]
        started: set[int] = set()
        while len(started) < self._batch:
            started.update(event.request_id for event in engine.step())
        for _ in range(_SETTLED):
            engine.step()
        engine.drain()

    def act(self) -> None:
        """The steps."""
        for _ in range(self._steps):
            self._driver.engine.step()
        self._driver.engine.drain()

    def clear_up(self) -> None:
        """Abort the batch."""
        engine = self._driver.engine
        for request_id in self._ids:
            engine.abort(Abort(request_id))
        while engine.has_work():
            engine.step()


class PrefillScene:
    """Some prompts of `prompt_len` tokens, one after the other."""

    def __init__(self, driver: Driver, prompts: PromptMaker, prompt_len: int) -> None:
        self.what = f"prefill step, prompts of {prompt_len:,}"
        self._driver, self._prompts, self._prompt_len = driver, prompts, prompt_len

    def prepare(self) -> None:
        """Nothing: each prompt finds the engine idle."""

    def act(self) -> None:
        """The prompts."""
        for _ in range(_PREFILLS):
            self._driver.generate([self._prompts.one(self._prompt_len)], [1])

    def clear_up(self) -> None:
        """Nothing is left."""
