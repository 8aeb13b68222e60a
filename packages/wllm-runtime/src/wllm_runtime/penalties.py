"""`PenaltyTables`: which tokens a request has seen, kept only for the requests that ask for a penalty."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wllm_kernels import Penalties
from wllm_runtime.transfers import upload
from wllm_sched import SamplingParams
from wllm_sched.plan import NewSlot


class PenaltyTables:
    """Rows of output counts int32 [rows, vocab] and of prompt tokens bool [rows, vocab]; grows when it is full."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._device = device
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
        tokens = upload(new.token_ids, torch.int64, self._device)
        prompt, output = tokens[: new.num_prompt_tokens], tokens[new.num_prompt_tokens :]
        # Assignments by index would wait for the device: they copy their value from ordinary memory of the host.
        self._seen[row].zero_().index_fill_(0, prompt, True)
        self._counts[row].zero_().index_add_(0, output, torch.ones_like(output, dtype=torch.int32))

    def of_rows(self, slots: Sequence[int]) -> Penalties | None:
        """The penalties among the rows of `slots`, good until a slot is entered; None for none."""
        rows = [row for row, slot in enumerate(slots) if slot in self._row_of]
        if not rows:
            return None
        params = [self._params[slots[row]] for row in rows]

        def column(values: Sequence[float]) -> Tensor:
            return upload(values, torch.float32, self._device)

        return Penalties(
            rows=upload(rows, torch.int64, self._device),
            slots=upload([self._row_of[slots[row]] for row in rows], torch.int64, self._device),
            repetition=column([p.repetition_penalty for p in params]),
            presence=column([p.presence_penalty for p in params]),
            frequency=column([p.frequency_penalty for p in params]),
            output_counts=self._counts,
            prompt_seen=self._seen,
        )

    def count(self, penalties: Penalties, tokens: Tensor) -> None:
        """Note the drawn `tokens` int64 [rows of the step], on the device; failed rows (negative ids) count nothing."""
        drawn = tokens[penalties.rows]
        at = penalties.slots, drawn.clamp(min=0)  # all different, since every slot has one row
        self._counts.index_put_(at, self._counts[at] + (drawn >= 0))

    def _grow(self) -> None:
        rows, vocab_size = self._counts.shape
        more = max(rows, 1)
        self._counts = torch.cat((self._counts, self._counts.new_zeros(more, vocab_size)))
        self._seen = torch.cat((self._seen, self._seen.new_zeros(more, vocab_size)))
        self._free += range(rows, rows + more)
