"""llama.cpp through llama-cpp-python, timed: one request at a time, which is what that binding's own interface does."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from time import perf_counter
from typing import Any

from .interface import Unsupported, check_lengths


class LlamaCppEngine:
    """`model` is a .gguf file; `options` are the keyword arguments of `llama_cpp.Llama`."""

    PACKAGE = "llama_cpp"

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._llama = import_module("llama_cpp").Llama(model_path=model, **options)

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        """As `TimedEngine` says."""
        if len(prompts) > 1:
            raise Unsupported("llama-cpp-python answers one request at a time")
        (prompt,), (length,) = prompts, output_lengths
        answer: list[int] = []
        begin = perf_counter()
        self._llama.reset()
        self._llama.eval(list(prompt))
        while True:
            answer.append(self._llama.sample(temp=0.0))
            if len(answer) == length:
                break
            self._llama.eval(answer[-1:])
        seconds = perf_counter() - begin
        check_lengths([len(answer)], output_lengths)
        return seconds

    def close(self) -> dict[str, int]:
        """Release the model."""
        self._llama.close()
        return {}
