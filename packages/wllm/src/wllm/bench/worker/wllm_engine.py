"""wLLM's `LLM`, timed."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from .interface import check_lengths


class WllmEngine:
    """`options` are the keyword arguments of `LLM`."""

    PACKAGE = "wllm"

    def __init__(self, model: str | None, options: dict[str, Any]) -> None:
        from wllm import LLM, SamplingParams

        self._params = SamplingParams
        self.llm = LLM(model, **options)

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        """As `TimedEngine` says."""
        params = [self._params(temperature=0, max_tokens=length, ignore_eos=True) for length in output_lengths]
        begin = perf_counter()
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        seconds = perf_counter() - begin
        check_lengths([len(output.outputs[0].token_ids) for output in outputs], output_lengths)
        return seconds

    def close(self) -> dict[str, int]:
        """Release the model; how its steps ran."""
        stats = self.llm.stats()
        self.llm.shutdown()
        return {
            "graph replays": stats.graph_replays_total,
            "eager steps": stats.eager_steps_total,
            "graph failures": stats.graph_failures_total,
            "preemptions": stats.preemptions_total,
        }
