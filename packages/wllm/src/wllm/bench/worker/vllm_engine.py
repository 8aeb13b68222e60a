"""vLLM's `LLM`, timed (read against its release 0.26)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from time import perf_counter
from typing import Any

from .interface import check_lengths


class VllmEngine:
    """`options` are the keyword arguments of vLLM's `LLM`."""

    PACKAGE = "vllm"

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._vllm = import_module("vllm")
        self._llm = self._vllm.LLM(model=model, **options)

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        """As `TimedEngine` says."""
        params = [
            self._vllm.SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
            for length in output_lengths
        ]
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        begin = perf_counter()
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        seconds = perf_counter() - begin
        check_lengths([len(output.outputs[0].token_ids) for output in outputs], output_lengths)
        return seconds

    def close(self) -> dict[str, int]:
        """Release the model: vLLM does so when the object goes."""
        del self._llm
        return {}
