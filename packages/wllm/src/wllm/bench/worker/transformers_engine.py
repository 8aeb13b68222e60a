"""Hugging Face transformers' `generate`, timed: one padded batch, as its users run it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from time import perf_counter
from typing import Any

from .interface import check_lengths


class TransformersEngine:
    """`options`: device ("cuda" or "cpu"), dtype (a name of torch's), dummy (random weights)."""

    PACKAGE = "transformers"

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._torch = torch = import_module("torch")
        auto = import_module("transformers").AutoModelForCausalLM
        dtype, device = getattr(torch, options["dtype"]), torch.device(options["device"])
        if options["dummy"]:
            config = import_module("transformers").AutoConfig.from_pretrained(model)
            with device:
                self._model = auto.from_config(config, dtype=dtype)
        else:
            self._model = auto.from_pretrained(model, dtype=dtype).to(device)
        self._model.eval()
        self._device = device

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        """As `TimedEngine` says. A padded batch runs on to its longest answer; each is cut to what was asked for."""
        torch = self._torch
        longest, most = max(map(len, prompts)), max(output_lengths)
        padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        begin = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                torch.tensor(padded, device=self._device),
                attention_mask=torch.tensor(mask, device=self._device),
                do_sample=False,
                max_new_tokens=most,
                min_new_tokens=most,
                pad_token_id=0,
            ).tolist()
        seconds = perf_counter() - begin
        answers = [row[longest : longest + length] for row, length in zip(out, output_lengths, strict=True)]
        check_lengths([len(answer) for answer in answers], output_lengths)
        return seconds

    def close(self) -> dict[str, int]:
        """Release the model."""
        del self._model
        return {}
