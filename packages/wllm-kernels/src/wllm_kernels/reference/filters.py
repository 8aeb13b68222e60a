"""Which tokens a row may draw: min-p, top-k and top-p as one threshold on the scaled logits.

`scaled` is (logit - largest logit) / temperature, so its largest value is 0; rows are free of NaN. The filters apply in
this order, each to what the one before left: min-p keeps probability >= min_p * largest probability; top-k keeps
values >= the k-th largest; top-p keeps a value if the probability of all strictly larger ones is < top_p. Equal values
stand or fall together, and the largest always stays, so the result does not depend on how a sort breaks ties.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Top-p first sums probability by intervals of the scaled logit, then sorts only the interval in which the sum is
# reached: sorting a vocabulary takes about twenty times as long. The last interval holds all that is below the others.
_INTERVALS = 2048
_INTERVALS_PER_UNIT = 64.0


def thresholds(scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None) -> Tensor:
    """float32 [rows]: the least value of `scaled` [rows, vocab] that may be drawn, -inf where nothing is filtered."""
    vocab_size = scaled.shape[1]
    floor = torch.full((scaled.shape[0],), -torch.inf, device=scaled.device)
    if min_p is not None:
        floor = torch.log(min_p.clamp(0, 1))
    if top_k is not None:
        rows = ((top_k > 0) & (top_k < vocab_size)).nonzero().view(-1)
        if rows.numel():
            floor[rows] = torch.maximum(floor[rows], _kth_largest(scaled[rows], top_k[rows]))
    if top_p is not None:
        rows = (top_p < 1).nonzero().view(-1)
        if rows.numel():
            floor[rows] = torch.maximum(floor[rows], _nucleus(scaled[rows], floor[rows], top_p[rows]))
    return floor


def _kth_largest(scaled: Tensor, k: Tensor) -> Tensor:
    largest = scaled.topk(int(k.max())).values
    return largest.gather(1, k.sub(1).unsqueeze(1)).squeeze(1)


def _nucleus(scaled: Tensor, floor: Tensor, top_p: Tensor) -> Tensor:
    weights = torch.exp(scaled).masked_fill_(scaled < floor.unsqueeze(1), 0.0).double()
    interval = (scaled * -_INTERVALS_PER_UNIT).clamp_(max=_INTERVALS - 1).long()
    mass = weights.new_zeros(scaled.shape[0], _INTERVALS).scatter_add_(1, interval, weights)
    reached = mass.cumsum(-1)
    wanted = reached[:, -1] * top_p
    larger = reached - mass
    # The last interval that holds anything and is not yet past the wanted sum; the first one holds the largest value.
    partly_kept = (larger < wanted.unsqueeze(1)) & (mass > 0)
    last = torch.arange(_INTERVALS, device=scaled.device).mul(partly_kept).amax(-1)
    cuts = []
    for row, index in enumerate(last.tolist()):
        values = scaled[row][interval[row] == index].sort(descending=True).values
        weight = values.double().exp()
        kept = int((larger[row, index] + weight.cumsum(0) - weight < wanted[row]).sum())
        cuts.append(values[max(kept, 1) - 1])
    return torch.stack(cuts)
