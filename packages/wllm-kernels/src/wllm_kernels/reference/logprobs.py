"""Log-probabilities of raw logits in plain torch, a few rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

# Float32 temporaries stay below 32 MiB however many rows there are.
_CHUNK_ELEMENTS = 8 * 1024 * 1024


def logprobs(
    logits: Tensor,
    token_ids: Tensor,
    workspace: Tensor | None,
    logprob: Tensor,
    rank: Tensor,
    top_ids: Tensor,
    top_logprobs: Tensor,
) -> None:
    """Value and rank of each row's token, and the row's best entries."""
    chunk = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    for first in range(0, logits.shape[0], chunk):
        rows = slice(first, first + chunk)
        values = logits[rows].float()
        norm = torch.logsumexp(values, -1, keepdim=True)
        chosen = values.gather(1, token_ids[rows, None])
        logprob[rows] = (chosen - norm).squeeze(1)
        rank[rows] = (values > chosen).sum(-1) + 1
        if top_ids.shape[1]:
            best = _best(values, top_ids.shape[1])
            top_ids[rows] = best
            top_logprobs[rows] = values.gather(1, best) - norm


def _best(values: Tensor, count: int) -> Tensor:
    """Token ids of the `count` largest values of each row, best first, lowest id first among equals."""
    found = values.topk(count)
    # torch takes any of equal values, in any order: by id first, then by value, and whole rows where one was left out.
    ids = found.indices.sort(-1).values
    order = values.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    ids = ids.gather(1, order)
    tied = ((values >= found.values[:, -1:]).sum(-1) > count).nonzero().view(-1)
    if tied.numel():
        ids[tied] = values[tied].sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return ids
