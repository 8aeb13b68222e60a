"""RMS norm in plain torch: float32 statistics, rounded to the dtype of the input, then multiplied by the weight."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, weight_offset: float, out: Tensor) -> None:
    """The norm of `x`, or of `residual` after `x` is added to it in place, into `out`."""
    if residual is not None:
        x = residual.add_(x)
    if weight_offset:  # families that store weight - 1 multiply before they round
        scaled = normalise(x.float(), eps).mul_(weight.float() + weight_offset)
        out.copy_(scaled)
    else:
        torch.mul(normalise(x, eps), weight, out=out)


def normalise(x: Tensor, eps: float) -> Tensor:
    """`x` divided by its root mean square over the last dimension, in the dtype of `x`."""
    wide = x.float()
    # The squared 2-norm is one pass; squaring into a copy and its mean are two.
    mean_square: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    scale = mean_square.add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype)
