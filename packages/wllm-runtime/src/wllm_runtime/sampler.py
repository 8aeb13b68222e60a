"""`Sampler`: turns the logits of a step's sampling rows into tokens, by what each slot's request asked for.

Owns the sampling state of every slot (settings, penalty counts) and chooses which inputs a step's `wllm_kernels.sample`
needs: a step of plain greedy rows passes nothing but its logits. It enqueues work and waits for none of it. Called by
the runner only, in the order of the plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
import torch
from torch import Tensor

from wllm_kernels import Draw, Penalties, logprobs, sample, sample_workspace_bytes
from wllm_runtime.bans import BannedTokens, RowBias
from wllm_runtime.buffers import SlotTables
from wllm_runtime.penalties import PenaltyTables
from wllm_runtime.token_scores import TokenScores
from wllm_runtime.transfers import upload
from wllm_sched import SamplingParams
from wllm_sched.plan import NewSlot, TokenLogprobs, TokenMask

_NOT_FINITE = "The model's scores are not finite (NaN or infinity) here."
_ALL_BANNED = (
    "No token is left to choose from: the request's own logit_bias, allowed_token_ids, bad_words, min_tokens, grammar "
    "or penalties rule out every one. Loosen them."
)
_ALL_BANNED_CODE = "no_token_allowed"
_ALL_BANNED_ID = -2  # of wllm_kernels.sample; -1 is a row whose logits are not finite


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn: `tokens` int64 [rows] on the device, of `slots`; and the scores of the rows that asked."""

    tokens: Tensor
    slots: tuple[int, ...]
    scores: TokenScores | None
    scored_rows: tuple[tuple[int, int], ...]  # (row, entries asked for)

    def logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        """The log-probabilities of each row; behind the step's event."""
        result: list[TokenLogprobs | None] = [None] * len(self.slots)
        if self.scores is not None:
            for (row, count), entry in zip(self.scored_rows, self.scores.entries(), strict=True):
                result[row] = entry._replace(top=entry.top[:count])
        return tuple(result)

    def errors(self, token_ids: Sequence[int]) -> tuple[dict[int, str], dict[int, str]]:
        """What went wrong, by slot, and the codes of the errors that the request's own parameters caused."""
        if min(token_ids) >= 0:
            return {}, {}
        failed = {slot: token_id for slot, token_id in zip(self.slots, token_ids, strict=True) if token_id < 0}
        banned = [slot for slot, token_id in failed.items() if token_id == _ALL_BANNED_ID]
        return dict.fromkeys(failed, _NOT_FINITE) | dict.fromkeys(banned, _ALL_BANNED), dict.fromkeys(
            banned, _ALL_BANNED_CODE
        )


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a set of rows asks for, on the device. `draw` comes without its positions; None: all rows are greedy."""

    draw: Draw | None
    bias: RowBias | None
    bitmask: Tensor | None
    penalties: Penalties | None
    scored_rows: tuple[tuple[int, int], ...]
    scored_index: Tensor | None  # int64; None: all rows, or none


class Sampler:
    """Sampling state of all slots over a vocabulary."""

    def __init__(self, tables: SlotTables, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tables = tables
        self._device = tables.device
        self._vocab_size = vocab_size
        self._slots: dict[int, NewSlot] = {}
        self._bans = BannedTokens(tables, eos_token_ids)
        self._penalties = PenaltyTables(vocab_size, self._device)
        self._masks: dict[int, Tensor] = {}
        # A decode batch keeps its rows for many steps: the tensors are built when a slot changes, not every step.
        self._settings_of: tuple[int, ...] = ()
        self._settings: _Settings | None = None
        self._tokens = torch.empty(tables.num_slots, dtype=torch.int64, device=self._device)
        # Rows with bias, bitmask or penalties need a copy of the logits beside it: theirs is allocated when they come.
        num_bytes = sample_workspace_bytes(tables.num_slots, vocab_size, adjusted=False)
        self._workspace = torch.empty(
            num_bytes if self._device.type == "cuda" else 0, dtype=torch.uint8, device=self._device
        )

    def enter(self, new: NewSlot) -> None:
        """A request takes a slot."""
        # Not its tokens: the slot may stay idle for long, and a prompt is large.
        self._slots[new.slot] = new._replace(token_ids=())
        self._settings = None
        self._bans.enter(new)
        self._penalties.enter(new)
        self._masks.pop(new.slot, None)
        if new.params.allowed_token_ids is not None:
            self._masks[new.slot] = _bitmask(new.params.allowed_token_ids, self._vocab_size, self._device)

    def sample(
        self, logits: Tensor, slots: tuple[int, ...], positions: Tensor, masks: Sequence[TokenMask] = ()
    ) -> Drawn:
        """Draw one token a row from float32 logits [rows, vocab], for `positions` int64 [rows], within `masks`."""
        settings = self._settings_for(slots)
        draw, bias = settings.draw, settings.bias
        bitmask = self._masked(settings.bitmask, slots, masks) if masks else settings.bitmask
        is_plain = bias is None and bitmask is None and settings.penalties is None
        tokens = sample(
            logits,
            draw=None if draw is None else replace(draw, positions=positions),
            bias=None if bias is None else bias.at(self._tables.token_table, positions),
            bitmask=bitmask,
            penalties=settings.penalties,
            workspace=self._workspace if is_plain and len(self._workspace) else None,
            out=self._tokens[: len(slots)],
        )
        if settings.penalties is not None:
            self._penalties.count(settings.penalties, tokens)
        return Drawn(tokens, slots, self._scores(logits, tokens, settings), settings.scored_rows)

    def rehearse(self, logits: Tensor) -> Tensor:
        """Draw from logits [rows, vocab] with everything a row can ask for, so that no later draw takes more memory."""
        rows = len(logits)
        ones = torch.ones(rows, dtype=torch.int64, device=self._device)
        floats = torch.full((rows,), 0.5, device=self._device)
        everything = torch.full((rows, -(-self._vocab_size // 32)), -1, dtype=torch.int32, device=self._device)
        draw = Draw(floats, ones, ones, top_k=ones, top_p=floats, min_p=floats)
        tokens = sample(logits, draw=draw, bitmask=everything, out=self._tokens[:rows])
        logprobs(logits, tokens.clamp(min=0), 1)
        return tokens

    def _scores(self, logits: Tensor, tokens: Tensor, settings: _Settings) -> TokenScores | None:
        if not settings.scored_rows:
            return None
        if settings.scored_index is not None:
            logits, tokens = logits[settings.scored_index], tokens[settings.scored_index]
        ids = tokens.clamp(min=0)
        most = max(count for _, count in settings.scored_rows)
        return TokenScores.download(ids, logprobs(logits, ids, min(most, self._vocab_size)))

    def _settings_for(self, slots: tuple[int, ...]) -> _Settings:
        if self._settings is None or self._settings_of != slots:
            self._settings = self._make_settings(slots)
            self._settings_of = slots
        return self._settings

    def _make_settings(self, slots: tuple[int, ...]) -> _Settings:
        counts = [self._slots[slot].params.logprobs for slot in slots]
        scored = tuple((row, count) for row, count in enumerate(counts) if count is not None)
        some = 0 < len(scored) < len(slots)
        return _Settings(
            draw=self._draw_of(slots),
            bias=self._bans.of_rows(slots),
            bitmask=self._bitmask_of(slots),
            penalties=self._penalties.of_rows(slots),
            scored_rows=scored,
            scored_index=self._tensor([row for row, _ in scored], torch.int64) if some else None,
        )

    def _draw_of(self, slots: tuple[int, ...]) -> Draw | None:
        params = [self._slots[slot].params for slot in slots]
        if all(_temperature(p) == 0 for p in params):
            return None
        seeds = self._tensor([_signed(self._slots[slot].seed) for slot in slots], torch.int64)

        def column(values: list[float], dtype: torch.dtype, off: float) -> Tensor | None:
            return None if all(value == off for value in values) else self._tensor(values, dtype)

        return Draw(
            temperature=self._tensor([_temperature(p) for p in params], torch.float32),
            seeds=seeds,
            positions=seeds,  # replaced every step
            top_k=column([max(p.top_k, 0) for p in params], torch.int64, off=0),
            top_p=column([p.top_p or 1.0 for p in params], torch.float32, off=1.0),
            min_p=column([p.min_p for p in params], torch.float32, off=0.0),
        )

    def _bitmask_of(self, slots: tuple[int, ...]) -> Tensor | None:
        if not any(slot in self._masks for slot in slots):
            return None
        everything = torch.full((-(-self._vocab_size // 32),), -1, dtype=torch.int32, device=self._device)
        return torch.stack([self._masks.get(slot, everything) for slot in slots])

    def _masked(self, bitmask: Tensor | None, slots: tuple[int, ...], masks: Sequence[TokenMask]) -> Tensor:
        # What the masks of this step leave of the rows' own bitmask, or of everything.
        words = -(-self._vocab_size // 32)
        host = torch.empty(len(masks), words, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        for row, mask in zip(host.numpy(), masks, strict=True):
            row[:] = numpy.frombuffer(mask.words, numpy.int32)
        of_masks = host.to(self._device, non_blocking=True)
        row_of = {slot: row for row, slot in enumerate(slots)}
        rows = self._tensor([row_of[mask.slot] for mask in masks], torch.int64)
        if bitmask is None:
            everything = torch.full((len(slots), words), -1, dtype=torch.int32, device=self._device)
            return everything.index_copy_(0, rows, of_masks)
        return bitmask.index_copy(0, rows, bitmask[rows] & of_masks)

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return upload(values, dtype, self._device)


def _temperature(params: SamplingParams) -> float:
    # A nucleus of nothing holds the likeliest token only.
    return params.temperature if params.top_p > 0 else 0.0


def _signed(seed: int) -> int:
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _bitmask(token_ids: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    allowed = torch.zeros(-(-vocab_size // 32) * 32, dtype=torch.int64)
    allowed[list(token_ids)] = 1
    words = (allowed.view(-1, 32) << torch.arange(32)).sum(1)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words)
    return upload(words.tolist(), torch.int32, device)
