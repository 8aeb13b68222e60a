"""Log-probabilities of the plain model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.checks import expect_dtype, expect_shape


class Logprobs(NamedTuple):
    """Log-probabilities at one position a row."""

    logprob: Tensor  # float32 [rows], of the row's token
    rank: Tensor  # int64 [rows], 1 is the best: tokens with a strictly larger logit, plus 1
    top_ids: Tensor  # int64 [rows, top_n], best first
    top_logprobs: Tensor  # float32 [rows, top_n]


def logprobs(logits: Tensor, token_ids: Tensor, top_n: int = 0) -> Logprobs:
    """Log-softmax of the raw `logits` [rows, vocab] at `token_ids` int64 [rows] and at each row's `top_n` best."""
    expect_shape("logits", logits, None, None)
    rows, vocab_size = logits.shape
    expect_shape("token_ids", token_ids, rows)
    expect_dtype("token_ids", token_ids, torch.int64)
    if not 0 <= top_n <= vocab_size:
        raise InvalidArgument(f"top_n is {top_n} for a vocabulary of {vocab_size}; pass 0 to {vocab_size}")
    device = logits.device
    result = Logprobs(
        torch.empty(rows, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.int64, device=device),
        torch.empty(rows, top_n, dtype=torch.int64, device=device),
        torch.empty(rows, top_n, dtype=torch.float32, device=device),
    )
    dispatch.logprobs(logits, token_ids, *result)
    return result
