"""Which tokens a row may draw: min-p, top-k and top-p as one threshold on the scaled logits.

`scaled` is (logit - largest logit) / temperature. The filters apply in this order, each to what the one before left:
min-p keeps probability >= min_p * largest probability; top-k keeps values >= the k-th largest; top-p keeps a value if
the probability of all strictly larger ones is < top_p. Equal values stand or fall together, and the largest always
stays, so the result does not depend on how a sort breaks ties.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Sorting a whole vocabulary costs far more than the model's last layer; the kept tokens nearly always lie in here.
_FIRST_CANDIDATES = 1024


def thresholds(scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """float32 [rows]: the least value of `scaled` [rows, vocab] that may be drawn, -inf where nothing is filtered."""
    rows, vocab_size = scaled.shape
    floor = torch.full((rows,), -torch.inf, device=scaled.device)
    if min_p is not None:
        floor = torch.log(min_p)
    limits = torch.full((rows,), vocab_size, dtype=torch.int64, device=scaled.device)
    if top_k is not None:
        limits = torch.where((top_k > 0) & (top_k < vocab_size), top_k, vocab_size)
    masses = torch.ones_like(floor) if top_p is None else top_p
    ranked = ((limits < vocab_size) | (masses < 1)).nonzero().view(-1)
    if ranked.numel():
        floor[ranked] = _ranked(scaled[ranked], floor[ranked], limits[ranked], masses[ranked], _FIRST_CANDIDATES)
    return floor


def _ranked(scaled: Tensor, floor: Tensor, limits: Tensor, masses: Tensor, num_candidates: int) -> Tensor:
    vocab_size = scaled.shape[1]
    limited = limits < vocab_size
    num_candidates = max(num_candidates, int(torch.where(limited, limits, 1).max()))
    num_candidates = min(num_candidates, vocab_size)
    values = scaled.topk(num_candidates).values
    kth = values.gather(1, limits.clamp(max=num_candidates).sub(1).unsqueeze(1)).squeeze(1)
    floor = torch.where(limited, torch.maximum(floor, kth), floor)

    weights = torch.exp(scaled).masked_fill_(scaled < floor.unsqueeze(1), 0.0)
    total = weights.sum(-1, keepdim=True)
    weight = torch.exp(values).masked_fill_(values < floor.unsqueeze(1), 0.0)
    covered = weight.cumsum(-1) / total
    larger = covered - weight / total
    last = (larger < masses.unsqueeze(1)).sum(-1, keepdim=True).sub(1).clamp_(min=0)
    cut = torch.where(masses < 1, values.gather(1, last).squeeze(1), -torch.inf)
    result = torch.maximum(floor, cut)
    short = (masses < 1) & (covered[:, -1] < masses) & (values[:, -1] > floor)
    if num_candidates < vocab_size and bool(short.any()):
        rest = short.nonzero().view(-1)
        result[rest] = _ranked(scaled[rest], floor[rest], limits[rest], masses[rest], vocab_size)
    return result
