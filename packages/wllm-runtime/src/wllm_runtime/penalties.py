"""`PenaltyTables`: which tokens a request has seen, kept only for the requests that ask for a penalty."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from wllm_kernels import Penalties
from wllm_sched import SamplingParams
from wllm_sched.plan import NewSlot


class PenaltyTables:
    """Rows of output counts int32 [rows, vocab] and of prompt tokens bool [rows, vocab]; grows when it is full."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._seen = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._free: list[int] = []
        self._row_of: dict[int, int] = {}
        self._params: dict[int, SamplingParams] = {}

    def enter(self, new: NewSlot) -> None:
        """A request takes a slot; its tokens so far are counted if it has a penalty."""
        row = self._row_of.pop(new.slot, None)
        if row is not None:
            self._free.append(row)
        params = new.params
        if params.repetition_penalty == 1 and not params.presence_penalty and not params.frequency_penalty:
            return
        if not self._free:
            self._grow()
        row = self._row_of[new.slot] = self._free.pop()
        self._params[new.slot] = params
        tokens = torch.tensor(new.token_ids, dtype=torch.int64, device=self._counts.device)
        prompt, output = tokens[: new.num_prompt_tokens], tokens[new.num_prompt_tokens :]
        self._seen[row] = False
        self._seen[row, prompt] = True
        self._counts[row] = 0
        self._counts[row].index_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def inputs(self, slots: Sequence[int]) -> Penalties | None:
        """The penalties among the rows of `slots`; None for none."""
        rows = [row for row, slot in enumerate(slots) if slot in self._row_of]
        if not rows:
            return None
        params = [self._params[slots[row]] for row in rows]
        device = self._counts.device

        def column(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        return Penalties(
            rows=torch.tensor(rows, dtype=torch.int64, device=device),
            slots=torch.tensor([self._row_of[slots[row]] for row in rows], dtype=torch.int64, device=device),
            repetition=column([p.repetition_penalty for p in params]),
            presence=column([p.presence_penalty for p in params]),
            frequency=column([p.frequency_penalty for p in params]),
            output_counts=self._counts,
            prompt_seen=self._seen,
        )

    def count(self, slots: Sequence[int], token_ids: Sequence[int]) -> None:
        """Note the tokens that were drawn."""
        for slot, token_id in zip(slots, token_ids, strict=True):
            row = self._row_of.get(slot)
            if row is not None and token_id >= 0:
                self._counts[row, token_id] += 1

    def _grow(self) -> None:
        rows, vocab_size = self._counts.shape
        more = max(rows, 1)
        self._counts = torch.cat((self._counts, self._counts.new_zeros(more, vocab_size)))
        self._seen = torch.cat((self._seen, self._seen.new_zeros(more, vocab_size)))
        self._free += range(rows, rows + more)
