"""Log-probabilities of prompt tokens, for the requests that ask for them."""

from __future__ import annotations

import torch

from wllm_kernels import logprobs
from wllm_runtime.buffers import SlotTables
from wllm_runtime.models.decoder import Decoder
from wllm_sched.plan import NewSlot, StepPlan, TokenLogprobs

# Scores of [positions, vocabulary] in float32 are large: 256 positions of a vocabulary of 152k take 156 MB.
_POSITIONS_AT_ONCE = 256


class PromptScores:
    """Scores each prompt token of a row by the logits of the position before it."""

    def __init__(self, model: Decoder, tables: SlotTables) -> None:
        self._model = model
        self._tables = tables
        self._wanted: dict[int, tuple[int, int]] = {}  # slot -> (top entries, prompt length)

    def enter(self, new: NewSlot) -> None:
        """A request takes the slot: note whether it wants prompt log-probabilities."""
        top_n = new.params.prompt_logprobs
        if top_n is None:
            self._wanted.pop(new.slot, None)
        else:
            self._wanted[new.slot] = (min(top_n, self._model.config.vocab_size), new.num_prompt_tokens)

    def of_step(self, plan: StepPlan, hidden: torch.Tensor) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Entries of the prompt positions start+1 .. start+count of each row that wants them, from [tokens, hidden]."""
        if not self._wanted:
            return {}
        scores: dict[int, tuple[TokenLogprobs, ...]] = {}
        offset = 0
        for row in plan.rows:
            top_n, prompt_len = self._wanted.get(row.slot, (None, 0))
            count = min(row.count, prompt_len - 1 - row.start)
            if top_n is not None and count > 0:
                scores[row.slot] = self._of_row(row.slot, row.start, hidden[offset : offset + count], top_n)
            offset += row.count
        return scores

    def _of_row(self, slot: int, start: int, hidden: torch.Tensor, top_n: int) -> tuple[TokenLogprobs, ...]:
        entries: list[TokenLogprobs] = []
        for first in range(0, len(hidden), _POSITIONS_AT_ONCE):
            piece = hidden[first : first + _POSITIONS_AT_ONCE]
            position = start + 1 + first
            targets = self._tables.token_table[slot, position : position + len(piece)].long()
            entries += to_entries(targets, *logprobs(self._model.logits(piece), targets, top_n))
        return tuple(entries)


def to_entries(
    token_ids: torch.Tensor, values: torch.Tensor, ranks: torch.Tensor, top_ids: torch.Tensor, top_values: torch.Tensor
) -> list[TokenLogprobs]:
    """Host entries from the results of `wllm_kernels.logprobs`."""
    return [
        TokenLogprobs(token_id, value, rank, tuple(zip(ids, top, strict=True)))
        for token_id, value, rank, ids, top in zip(
            token_ids.tolist(), values.tolist(), ranks.tolist(), top_ids.tolist(), top_values.tolist(), strict=True
        )
    ]
