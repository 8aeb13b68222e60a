"""Log-probabilities of raw logits in plain torch, a few rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

# Float32 temporaries stay below 32 MiB however many rows there are.
_CHUNK_ELEMENTS = 8 * 1024 * 1024


def logprobs(
    logits: Tensor, token_ids: Tensor, logprob: Tensor, rank: Tensor, top_ids: Tensor, top_logprobs: Tensor
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
            best = values.topk(top_ids.shape[1])
            top_ids[rows] = best.indices
            top_logprobs[rows] = best.values - norm
