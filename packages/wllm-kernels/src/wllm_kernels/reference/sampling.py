"""The sampler in plain torch; the public `sample` documents its exact meaning.

Rows pay only for what they use: a greedy row costs one maximum, only rows with top-k or top-p rank their candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wllm_kernels.reference.filters import thresholds
from wllm_kernels.reference.noise import gumbel, row_keys

GREEDY_BELOW = 1e-5


def sample(
    logits: Tensor,
    temperature: Tensor | None,
    top_k: Tensor | None,
    top_p: Tensor | None,
    min_p: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
    bias_rows: Tensor | None,
    bias_ids: Tensor | None,
    bias_values: Tensor | None,
    bitmask: Tensor | None,
    penalty_rows: Tensor | None,
    penalty_slots: Tensor | None,
    repetition: Tensor | None,
    presence: Tensor | None,
    frequency: Tensor | None,
    output_counts: Tensor | None,
    prompt_seen: Tensor | None,
    workspace: Tensor | None,
    out: Tensor,
) -> None:
    """One token id per row of `logits` into `out`; -1 where logits are not finite, -2 where no token is allowed."""
    processed = logits.float()
    if processed is logits and not (bias_rows is None and bitmask is None and penalty_rows is None):
        processed = logits.clone()
    if bias_rows is not None and bias_ids is not None and bias_values is not None:
        processed.index_put_((bias_rows, bias_ids), bias_values, accumulate=True)
    if bitmask is not None:
        _apply_bitmask(processed, bitmask)
    if (
        penalty_rows is not None
        and penalty_slots is not None
        and repetition is not None
        and presence is not None
        and frequency is not None
        and output_counts is not None
        and prompt_seen is not None
    ):
        counts = output_counts.index_select(0, penalty_slots)
        seen = prompt_seen.index_select(0, penalty_slots) | (counts > 0)
        penalised = _penalise(processed[penalty_rows], counts, seen, repetition, presence, frequency)
        processed.index_copy_(0, penalty_rows, penalised)

    largest, greedy = processed.max(-1)
    failed = ~torch.isfinite(largest)
    out.copy_(greedy)
    if bool(failed.any()):
        is_models_fault = ~torch.isfinite(logits[failed]).all(-1)
        out[failed] = torch.where(is_models_fault, -1, -2)
    if temperature is not None and seeds is not None and positions is not None:
        random = (~failed & (temperature >= GREEDY_BELOW)).nonzero().view(-1)
        if random.numel():
            scaled = (processed[random] - largest[random, None]).div_(temperature[random, None])
            chosen = [None if option is None else option[random] for option in (top_k, top_p, min_p)]
            out[random] = _draw(scaled, thresholds(scaled, *chosen), row_keys(seeds[random], positions[random]))


def _apply_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    masked = (bitmask != -1).any(-1).nonzero().view(-1)
    if masked.numel():
        bits = torch.arange(32, dtype=torch.int32, device=logits.device)
        allowed = (bitmask[masked].unsqueeze(-1) >> bits).bitwise_and_(1).flatten(1)[:, : logits.shape[1]]
        logits[masked] = logits[masked].masked_fill_(allowed == 0, -torch.inf)


def _penalise(
    logits: Tensor, counts: Tensor, seen: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    repetition = repetition.unsqueeze(1)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, repeated, logits)
    return logits - frequency.unsqueeze(1) * counts - presence.unsqueeze(1) * (counts > 0)


def _draw(scaled: Tensor, floor: Tensor, keys: Tensor) -> Tensor:
    low, high = keys.unbind(1)
    tokens = torch.empty(scaled.shape[0], dtype=torch.int64, device=scaled.device)
    whole = torch.isneginf(floor)
    rows = whole.nonzero().view(-1)
    if rows.numel():
        ids = torch.arange(scaled.shape[1], dtype=torch.int32, device=scaled.device)
        noise = gumbel(low[rows, None], high[rows, None], ids)
        tokens[rows] = noise.add_(scaled[rows]).argmax(-1)
    rows = (~whole).nonzero().view(-1)
    if rows.numel():  # noise for the few tokens that passed the filters
        kept = scaled[rows]
        row, token_id = (kept >= floor[rows, None]).nonzero().unbind(1)
        noise = gumbel(low[rows[row]], high[rows[row]], token_id.int())
        scores = torch.full_like(kept, -torch.inf)
        scores[row, token_id] = kept[row, token_id] + noise
        tokens[rows] = scores.argmax(-1)
    return tokens
