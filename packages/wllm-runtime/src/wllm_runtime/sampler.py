"""`Sampler`: turns the logits of a step's sampling rows into tokens, by what each slot's request asked for.

Owns the sampling state of every slot (settings, penalty counts) and chooses which inputs a step's `wllm_kernels.sample`
needs: a step of plain greedy rows passes nothing but its logits. Called by the runner only, in the order of the plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from wllm_kernels import Draw, logprobs, sample
from wllm_runtime.bans import BannedTokens
from wllm_runtime.buffers import SlotTables
from wllm_runtime.penalties import PenaltyTables
from wllm_runtime.prompt_scores import to_entries
from wllm_sched import SamplingParams
from wllm_sched.plan import NewSlot, Row, TokenLogprobs

_NOT_FINITE = "The model's scores are not finite (NaN or infinity) here."
_ALL_BANNED = (
    "No token is left to choose from: the request's own logit_bias, allowed_token_ids, bad_words, min_tokens or "
    "penalties rule out every one. Loosen them."
)
_ALL_BANNED_CODE = "no_token_allowed"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn: `tokens` int64 [rows] on the device, the same on the host, and what went wrong, by slot.

    `error_codes` holds those of the errors that the request's own parameters caused.
    """

    tokens: torch.Tensor
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    errors: dict[int, str]
    error_codes: dict[int, str]


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the rows of a step ask for: the draw without its positions (None: all greedy), and the allowed tokens."""

    draw: Draw | None
    bitmask: torch.Tensor | None


class Sampler:
    """Sampling state of all slots over a vocabulary."""

    def __init__(self, tables: SlotTables, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._device = tables.token_table.device
        self._vocab_size = vocab_size
        self._slots: dict[int, NewSlot] = {}
        self._bans = BannedTokens(tables, eos_token_ids)
        self._penalties = PenaltyTables(vocab_size, self._device)
        self._masks: dict[int, torch.Tensor] = {}
        # A decode batch keeps its rows for many steps: the tensors are built when a slot changes, not every step.
        self._settings_of: tuple[int, ...] = ()
        self._settings: _Settings | None = None

    def enter(self, new: NewSlot) -> None:
        """A request takes a slot."""
        self._slots[new.slot] = new
        self._settings = None
        self._bans.enter(new)
        self._penalties.enter(new)
        self._masks.pop(new.slot, None)
        if new.params.allowed_token_ids is not None:
            self._masks[new.slot] = _bitmask(new.params.allowed_token_ids, self._vocab_size, self._device)

    def sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> Drawn:
        """Draw one token a row from float32 logits [rows, vocab]."""
        slots = tuple(row.slot for row in rows)
        positions = [row.start + row.count for row in rows]
        settings = self._settings_for(slots)
        draw = settings.draw
        tokens = sample(
            logits,
            draw=None if draw is None else replace(draw, positions=self._tensor(positions, torch.int64)),
            bias=self._bans.bias(slots, positions),
            bitmask=settings.bitmask,
            penalties=self._penalties.inputs(slots),
        )
        token_ids = tuple(tokens.tolist())
        self._penalties.count(slots, token_ids)
        errors: dict[int, str] = {}
        error_codes: dict[int, str] = {}
        for index, token_id in enumerate(token_ids):
            if token_id < 0:
                slot = slots[index]
                errors[slot] = _NOT_FINITE
                if logits[index].isfinite().all():
                    errors[slot], error_codes[slot] = _ALL_BANNED, _ALL_BANNED_CODE
        return Drawn(tokens, token_ids, self._logprobs(logits, slots, tokens), errors, error_codes)

    def _logprobs(
        self, logits: torch.Tensor, slots: Sequence[int], tokens: torch.Tensor
    ) -> tuple[TokenLogprobs | None, ...]:
        counts = [self._slots[slot].params.logprobs for slot in slots]
        wanted = [index for index, count in enumerate(counts) if count is not None]
        result: list[TokenLogprobs | None] = [None] * len(slots)
        if wanted:
            most = min(max(count for count in counts if count is not None), self._vocab_size)
            ids = tokens[wanted].clamp(min=0)
            entries = to_entries(ids, *logprobs(logits[wanted], ids, most))
            for index, entry in zip(wanted, entries, strict=True):
                result[index] = entry._replace(top=entry.top[: counts[index]])
        return tuple(result)

    def _settings_for(self, slots: tuple[int, ...]) -> _Settings:
        if self._settings is None or self._settings_of != slots:
            self._settings = _Settings(self._draw_of(slots), self._bitmask_of(slots))
            self._settings_of = slots
        return self._settings

    def _draw_of(self, slots: tuple[int, ...]) -> Draw | None:
        params = [self._slots[slot].params for slot in slots]
        if all(_temperature(p) == 0 for p in params):
            return None
        seeds = self._tensor([_signed(self._slots[slot].seed) for slot in slots], torch.int64)

        def column(values: list[float], dtype: torch.dtype, off: float) -> torch.Tensor | None:
            return None if all(value == off for value in values) else self._tensor(values, dtype)

        return Draw(
            temperature=self._tensor([_temperature(p) for p in params], torch.float32),
            seeds=seeds,
            positions=seeds,  # replaced every step
            top_k=column([max(p.top_k, 0) for p in params], torch.int64, off=0),
            top_p=column([p.top_p or 1.0 for p in params], torch.float32, off=1.0),
            min_p=column([p.min_p for p in params], torch.float32, off=0.0),
        )

    def _bitmask_of(self, slots: tuple[int, ...]) -> torch.Tensor | None:
        if not any(slot in self._masks for slot in slots):
            return None
        everything = torch.full((-(-self._vocab_size // 32),), -1, dtype=torch.int32, device=self._device)
        return torch.stack([self._masks.get(slot, everything) for slot in slots])

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)


def _temperature(params: SamplingParams) -> float:
    # A nucleus of nothing holds the likeliest token only.
    return params.temperature if params.top_p > 0 else 0.0


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _bitmask(token_ids: Sequence[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    allowed = torch.zeros(-(-vocab_size // 32) * 32, dtype=torch.int64)
    allowed[list(token_ids)] = 1
    words = (allowed.view(-1, 32) << torch.arange(32)).sum(1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(device=device, dtype=torch.int32)
