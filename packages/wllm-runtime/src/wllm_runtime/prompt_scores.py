"""Log-probabilities of prompt tokens, for the requests that ask for them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from wllm_kernels import logprobs
from wllm_runtime.buffers import SlotTables
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.token_scores import TokenScores
from wllm_sched.plan import NewSlot, StepPlan, TokenLogprobs

# Scores of [positions, vocabulary] in float32 are large: 64 positions of a vocabulary of 152k take 39 MB.
_POSITIONS_AT_ONCE = 64

PromptEntries = dict[int, tuple[TokenLogprobs, ...]]


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

    def wants(self, plan: StepPlan) -> bool:
        """Whether any row of the plan needs `of_step`."""
        return bool(self._wanted) and any(self._count(row.slot, row.start, row.count) > 0 for row in plan.rows)

    def of_step(self, plan: StepPlan, hidden: Tensor) -> Callable[[], PromptEntries]:
        """Start scoring the prompt positions start+1 .. start+count of each row that wants them.

        `hidden` [tokens, hidden] are the step's last states. The result makes the entries, behind the step's event.
        """
        pending: dict[int, list[TokenScores]] = {}
        offset = 0
        for row in plan.rows:
            count = self._count(row.slot, row.start, row.count)
            if count > 0:
                pending[row.slot] = self._of_row(row.slot, row.start, hidden[offset : offset + count])
            offset += row.count
        return lambda: {
            slot: tuple(entry for scores in pieces for entry in scores.entries()) for slot, pieces in pending.items()
        }

    def _count(self, slot: int, start: int, count: int) -> int:
        wanted = self._wanted.get(slot)
        return 0 if wanted is None else min(count, wanted[1] - 1 - start)

    def _of_row(self, slot: int, start: int, hidden: Tensor) -> list[TokenScores]:
        top_n, _ = self._wanted[slot]
        pieces = []
        for first in range(0, len(hidden), _POSITIONS_AT_ONCE):
            piece = hidden[first : first + _POSITIONS_AT_ONCE]
            position = start + 1 + first
            targets = self._tables.token_table[slot, position : position + len(piece)].long()
            pieces.append(TokenScores.download(targets, logprobs(self._model.logits(piece), targets, top_n)))
        return pieces
