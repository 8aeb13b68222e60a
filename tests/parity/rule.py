"""The parity rule: our tokens and log-probabilities against transformers' on the same weights, in float32.

The same greedy tokens, top log-probabilities within 1e-3. A different token is excused only where the reference's two
best lie within 1e-4; excused ones are counted, printed, and at most 0.1 % of the positions. The reference is fed our
tokens one by one through its own cache, as its generate() does, so a comparison goes on behind an excused token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
import transformers

from wllm import RequestOutput
from wllm_runtime.testing_cache import cache_argument

LOGPROB_TOLERANCE = 1e-3
TIE = 1e-4
MAX_EXCUSED_SHARE = 1e-3


@dataclass
class Parity:
    """Running totals of a comparison; `check` asserts the rule for one output."""

    model: transformers.PreTrainedModel
    positions: int = 0
    excused: int = 0
    largest_difference: float = 0.0

    def check_all(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            for sample in output.outputs:
                self.check(output.prompt_token_ids, sample.token_ids, sample.logprobs)
        self.finish()

    def check(self, prompt: list[int], tokens: list[int], logprobs: list[dict] | None) -> None:
        assert tokens, "nothing was generated, so nothing was compared"
        reference = reference_logprobs(self.model, tuple(prompt), tuple(tokens))
        for step, (token, row) in enumerate(zip(tokens, reference, strict=True)):
            self.positions += 1
            best, second = row.topk(2).values.tolist()
            if token != int(row.argmax()):
                where = f"position {step} of prompt {prompt[:8]}...: got {token}, reference {int(row.argmax())}"
                assert best - second <= TIE and row[token] >= best - TIE, where
                self.excused += 1
                print(f"excused near tie ({best - second:.1e}), {where}")
            if logprobs is not None:
                self._check_logprobs(row, logprobs[step], step)

    def finish(self) -> None:
        print(
            f"{self.positions} positions, {self.excused} excused, largest log-probability difference "
            f"{self.largest_difference:.1e}"
        )
        assert self.excused <= max(self.positions * MAX_EXCUSED_SHARE, 0)

    def _check_logprobs(self, row: torch.Tensor, ours: dict, step: int) -> None:
        assert len(ours) >= 5, f"asked for five log-probabilities, got {len(ours)}"
        for value, token in zip(*row.topk(5), strict=True):
            # A token at the edge of the top five may change places with its equal.
            if int(token) in ours:
                difference = abs(ours[int(token)].logprob - float(value))
                self.largest_difference = max(self.largest_difference, difference)
                assert difference <= LOGPROB_TOLERANCE, f"step {step}, token {int(token)}: {difference}"
            else:
                worst = min(entry.logprob for entry in ours.values())
                assert float(value) - worst <= LOGPROB_TOLERANCE, f"step {step}: token {int(token)} is missing"


@lru_cache(maxsize=64)  # modes share their prompts, and should give the same tokens
@torch.inference_mode()
def reference_logprobs(
    model: transformers.PreTrainedModel, prompt: tuple[int, ...], tokens: tuple[int, ...]
) -> torch.Tensor:
    """Log-probabilities [tokens, vocab] before each of `tokens`, through transformers' own cache."""
    # A dynamic rotation keeps the longest text it has seen, over all calls; a single token resets it.
    model(torch.tensor([prompt[:1]]))
    rows = []
    inputs, cache = torch.tensor([prompt]), None
    argument = cache_argument(model)
    for token in tokens:
        out = model(inputs, **{argument: cache}, use_cache=True)
        cache = out[argument]
        rows.append(out.logits[0, -1].float().log_softmax(-1))
        inputs = torch.tensor([[token]])
    return torch.stack(rows)
