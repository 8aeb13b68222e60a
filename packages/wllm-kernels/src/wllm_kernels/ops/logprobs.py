"""Log-probabilities of the plain model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.device.logprobs import workspace_bytes
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.checks import expect_device, expect_dtype, expect_logits, expect_shape, expect_workspace


class Logprobs(NamedTuple):
    """Log-probabilities at one position a row."""

    logprob: Tensor  # float32 [rows], of the row's token
    rank: Tensor  # int64 [rows], 1 is the best: tokens with a strictly larger logit, plus 1
    top_ids: Tensor  # int64 [rows, top_n], best first, the lowest id first among equals
    top_logprobs: Tensor  # float32 [rows, top_n]


def logprobs_workspace_bytes(rows: int, vocab_size: int) -> int:
    """Bytes of a workspace that serves calls of `logprobs` with up to so many rows."""
    return workspace_bytes(rows, vocab_size)


def logprobs(
    logits: Tensor,
    token_ids: Tensor,
    top_n: int = 0,
    *,
    workspace: Tensor | None = None,
    out: Logprobs | None = None,
) -> Logprobs:
    """Log-softmax of the raw `logits` [rows, vocab] at `token_ids` int64 [rows] and at each row's `top_n` best.

    `workspace`, uint8 of `logprobs_workspace_bytes`, and `out` save allocations. Raises `InvalidArgument`.
    """
    rows, vocab_size = expect_logits(logits)
    expect_shape("token_ids", token_ids, rows)
    expect_dtype("token_ids", token_ids, torch.int64)
    if not 0 <= top_n <= vocab_size:
        raise InvalidArgument(f"top_n is {top_n} for a vocabulary of {vocab_size}; pass 0 to {vocab_size}")
    expect_device("token_ids", token_ids, logits)
    if workspace is not None:
        expect_workspace(workspace, workspace_bytes(rows, vocab_size), logits)
    if out is None:
        device = logits.device
        out = Logprobs(
            torch.empty(rows, dtype=torch.float32, device=device),
            torch.empty(rows, dtype=torch.int64, device=device),
            torch.empty(rows, top_n, dtype=torch.int64, device=device),
            torch.empty(rows, top_n, dtype=torch.float32, device=device),
        )
    else:
        _check_out(out, logits, top_n)
    dispatch.logprobs(logits, token_ids, workspace, *out)
    return out


def _check_out(out: Logprobs, logits: Tensor, top_n: int) -> None:
    rows = logits.shape[0]
    for name, tensor, dtype, shape in (
        ("logprob", out.logprob, torch.float32, (rows,)),
        ("rank", out.rank, torch.int64, (rows,)),
        ("top_ids", out.top_ids, torch.int64, (rows, top_n)),
        ("top_logprobs", out.top_logprobs, torch.float32, (rows, top_n)),
    ):
        expect_shape(f"out.{name}", tensor, *shape)
        expect_dtype(f"out.{name}", tensor, dtype)
        expect_device(f"out.{name}", tensor, logits)
