"""`BannedTokens`: what is added to the logits: the request's own bias, and bans that depend on what was generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wllm_kernels import LogitBias
from wllm_runtime.buffers import SlotTables
from wllm_sched.plan import NewSlot


@dataclass(frozen=True, slots=True)
class _Slot:
    bias: tuple[tuple[int, float], ...]
    num_prompt_tokens: int
    min_tokens: int
    stop_ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]


class BannedTokens:
    """Sparse logit bias of the rows of a step. Slots that ask for nothing are not kept."""

    def __init__(self, tables: SlotTables, eos_token_ids: Sequence[int]) -> None:
        self._tables = tables
        self._eos_token_ids = tuple(eos_token_ids)
        self._slots: dict[int, _Slot] = {}

    def enter(self, new: NewSlot) -> None:
        """A request takes a slot."""
        params = new.params
        bias = tuple((params.logit_bias or {}).items())
        bad_words = tuple(tuple(word) for word in params.bad_words_token_ids)
        # min_tokens holds back whatever would end the answer, and what cannot end it needs no holding back.
        ends = self._eos_token_ids if not params.ignore_eos else ()
        stop_ids = tuple({*ends, *(params.stop_token_ids or ())}) if params.min_tokens else ()
        if bias or bad_words or stop_ids:
            self._slots[new.slot] = _Slot(bias, new.num_prompt_tokens, params.min_tokens, stop_ids, bad_words)
        else:
            self._slots.pop(new.slot, None)

    def bias(self, slots: Sequence[int], positions: Sequence[int]) -> LogitBias | None:
        """Entries to add for rows of `slots` that draw the token at `positions`; None for none."""
        if not self._slots:
            return None
        entries: list[tuple[int, int, float]] = []
        for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
            state = self._slots.get(slot)
            if state is not None:
                entries += [(row, token_id, value) for token_id, value in state.bias]
                entries += [(row, token_id, -torch.inf) for token_id in self._banned(state, slot, position)]
        if not entries:
            return None
        rows, ids, values = zip(*entries, strict=True)
        device = self._tables.token_table.device
        return LogitBias(
            rows=torch.tensor(rows, dtype=torch.int64, device=device),
            token_ids=torch.tensor(ids, dtype=torch.int64, device=device),
            values=torch.tensor(values, dtype=torch.float32, device=device),
        )

    def _banned(self, state: _Slot, slot: int, position: int) -> set[int]:
        generated = position - state.num_prompt_tokens
        banned = set(state.stop_ids) if generated < state.min_tokens else set()
        if state.bad_words:
            longest = min(generated, max(len(word) for word in state.bad_words) - 1)
            tail = tuple(self._tables.token_table[slot, position - longest : position].tolist())
            for word in state.bad_words:
                if tail[len(tail) - len(word) + 1 :] == word[:-1] and len(tail) >= len(word) - 1:
                    banned.add(word[-1])
        return banned
