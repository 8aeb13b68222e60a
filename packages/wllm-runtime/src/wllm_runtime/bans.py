"""`BannedTokens`: what is added to the logits: the request's own bias, and bans that depend on what was generated.

Which of the bans hold is decided on the device, from the positions of the draws and the token table: with two steps in
flight the host does not know the tokens before a draw yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wllm_kernels import LogitBias
from wllm_runtime.buffers import SlotTables
from wllm_runtime.transfers import upload
from wllm_sched.plan import NewSlot


@dataclass(frozen=True, slots=True)
class _Slot:
    bias: tuple[tuple[int, float], ...]
    num_prompt_tokens: int
    min_tokens: int
    stop_ids: tuple[int, ...]
    bad_words: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _BadWords:
    """Words of the rows: all tokens but the last, and where they may begin. The tensors are int64 [words, ..]."""

    slots: Tensor
    rows: Tensor
    prefixes: Tensor  # [words, longest], the shorter ones filled up
    lengths: Tensor  # of the prefixes
    first_generated: Tensor  # position of the request's first generated token

    def completed(self, token_table: Tensor, positions: Tensor) -> Tensor:
        """bool [words]: whether the tokens in front of its row's draw are the word's, so that one more completes it."""
        begins = positions[self.rows] - self.lengths
        offsets = torch.arange(self.prefixes.shape[1], device=begins.device)
        at = (begins[:, None] + offsets).clamp(0, token_table.shape[1] - 1)
        is_same = token_table[self.slots[:, None], at] == self.prefixes
        return (is_same | (offsets >= self.lengths[:, None])).all(1) & (begins >= self.first_generated)


@dataclass(frozen=True, slots=True)
class RowBias:
    """The bias of a step's rows: fixed entries first, then those that end at a position, then those of words."""

    rows: Tensor  # int64 [entries]
    token_ids: Tensor  # int64 [entries]
    fixed: Tensor  # float32 [fixed entries]
    until: Tensor  # int64 [ending entries]: banned for draws in front of this position
    words: _BadWords | None

    def at(self, token_table: Tensor, positions: Tensor) -> LogitBias:
        """The entries for draws at `positions` int64 [rows]."""
        num_fixed, num_ending = len(self.fixed), len(self.until)
        values = [self.fixed]
        if num_ending:
            draws = positions[self.rows[num_fixed : num_fixed + num_ending]]
            values.append(_banned_where(draws < self.until))
        if self.words is not None:
            values.append(_banned_where(self.words.completed(token_table, positions)))
        return LogitBias(self.rows, self.token_ids, torch.cat(values))


class BannedTokens:
    """Sparse logit bias of the rows of a step. Slots that ask for nothing are not kept."""

    def __init__(self, tables: SlotTables, eos_token_ids: Sequence[int]) -> None:
        self._device = tables.device
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

    def of_rows(self, slots: Sequence[int]) -> RowBias | None:
        """The bias among the rows of `slots`, good until a slot is entered; None for none."""
        states = [(row, slot, self._slots[slot]) for row, slot in enumerate(slots) if slot in self._slots]
        fixed = [(row, token_id, value) for row, _, state in states for token_id, value in state.bias]
        ending = [
            (row, token_id, state.num_prompt_tokens + state.min_tokens)
            for row, _, state in states
            for token_id in state.stop_ids
        ]
        words = [(row, slot, state, word) for row, slot, state in states for word in state.bad_words]
        if not states:
            return None
        entries = [*fixed, *ending, *((row, word[-1], -torch.inf) for row, _, _, word in words)]
        return RowBias(
            rows=upload([row for row, _, _ in entries], torch.int64, self._device),
            token_ids=upload([token_id for _, token_id, _ in entries], torch.int64, self._device),
            fixed=upload([value for *_, value in fixed], torch.float32, self._device),
            until=upload([until for *_, until in ending], torch.int64, self._device),
            words=self._bad_words(words) if words else None,
        )

    def _bad_words(self, words: Sequence[tuple[int, int, _Slot, tuple[int, ...]]]) -> _BadWords:
        longest = max(len(word) for *_, word in words) - 1
        prefixes = [token_id for *_, word in words for token_id in (*word[:-1], *(-1,) * (longest + 1 - len(word)))]

        def column(values: Sequence[int]) -> Tensor:
            return upload(values, torch.int64, self._device)

        return _BadWords(
            slots=column([slot for _, slot, _, _ in words]),
            rows=column([row for row, _, _, _ in words]),
            prefixes=column(prefixes).view(len(words), longest),
            lengths=column([len(word) - 1 for *_, word in words]),
            first_generated=column([state.num_prompt_tokens for _, _, state, _ in words]),
        )


def _banned_where(condition: Tensor) -> Tensor:
    return torch.zeros(condition.shape, device=condition.device).masked_fill_(condition, -torch.inf)
