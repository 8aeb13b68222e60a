"""`Driver`: an engine in this process, stepped by the benchmark itself, for what `LLM.generate` does not show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wllm.bench.errors import BenchError
from wllm.bench.worker.interface import check_lengths
from wllm_sched import SamplingParams, Submit, TokenEvent

if TYPE_CHECKING:
    from wllm_runtime.engine import ModelEngine


class Driver:
    """Owns the engine; answers are greedy and exactly as long as asked for."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        from wllm_runtime import EngineConfig
        from wllm_runtime.engine import create_engine

        self.engine: ModelEngine = create_engine(EngineConfig(model=model, **settings))
        self._ids = itertools.count()

    def submit(self, prompt: Sequence[int], output_length: int) -> int:
        """Queue a request; its id."""
        request_id = next(self._ids)
        params = SamplingParams(temperature=0.0, max_tokens=output_length, ignore_eos=True)
        self.engine.submit(Submit(request_id, list(prompt), params))
        return request_id

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        """Answer all prompts, given at once; the seconds that took."""
        counts = {}
        begin = perf_counter()
        for prompt, length in zip(prompts, output_lengths, strict=True):
            counts[self.submit(prompt, length)] = 0

        def count(events: Sequence[TokenEvent]) -> None:
            for event in events:
                counts[event.request_id] += len(event.token_ids)

        self.run(count)
        seconds = perf_counter() - begin
        check_lengths(list(counts.values()), output_lengths)
        return seconds

    def run(self, see: Callable[[Sequence[TokenEvent]], None]) -> None:
        """Step until nothing is left to do; `see` gets each step's events. Raises `BenchError` for a failed request."""
        while self.engine.has_work():
            events = self.engine.step()
            for event in events:
                if event.finish_reason == "error":
                    raise BenchError(
                        f"the engine failed request {event.request_id}: {event.error}; no figure for this row"
                    )
            see(events)

    def close(self) -> None:
        """Release the model."""
        self.engine.close()
