"""The rule for 16-bit weights and 8-bit caches: the reference, fed our tokens, finds none much worse than its best.

Rounding may choose another of two tokens that are nearly as likely, and all that follows differs then; so the reference
(transformers in float32, on the same rounded weights) reads our tokens, and each one's log-probability must lie within
0.1 of the best one's at its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import transformers

from wllm import RequestOutput
from wllm_runtime.testing_cache import RoundedCache, Rounding, cache_argument

TOLERANCE = 0.1


@dataclass
class TeacherForced:
    """Running totals; `rounding` is applied to the reference's keys and values, as an 8-bit cache does to ours."""

    model: transformers.PreTrainedModel
    rounding: Rounding | None = None
    positions: int = 0
    disagreements: int = 0
    worst_gap: float = 0.0

    def check_all(self, outputs: Iterable[RequestOutput], what: str) -> None:
        """Judge all outputs; prints the worst gap beside `what` they were."""
        for output in outputs:
            for sample in output.outputs:
                self._add(self._gaps(output.prompt_token_ids, sample.token_ids))
        print(
            f"{what}: {self.positions} positions, {self.disagreements} not the reference's best, worst gap "
            f"{self.worst_gap:.3f}"
        )
        assert self.positions > 0, "nothing was generated, so nothing was compared"
        assert self.worst_gap <= TOLERANCE, f"{what}: a chosen token is {self.worst_gap:.3f} less likely than the best"

    def _add(self, gaps: torch.Tensor) -> None:
        self.positions += len(gaps)
        self.disagreements += int((gaps > 0).sum())
        self.worst_gap = max(self.worst_gap, float(gaps.max()))

    @torch.inference_mode()
    def _gaps(self, prompt: list[int], tokens: list[int]) -> torch.Tensor:
        options = {} if self.rounding is None else {cache_argument(self.model): RoundedCache(self.rounding)}
        logits = self.model(torch.tensor([prompt + tokens]), **options).logits[0, len(prompt) - 1 : -1]
        rows = logits.float().log_softmax(-1)
        return rows.amax(-1) - rows.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
