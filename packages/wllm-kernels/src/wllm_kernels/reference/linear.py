"""Linear layers in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from wllm_kernels.reference.activation import act_mul
from wllm_kernels.reference.norm import rms_norm


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str | None, out: Tensor) -> None:
    """`x` times the weight plus the bias, summed in float32, into `out`; with `kind` what `act_mul` makes of it."""
    result = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    if kind is not None:
        result = result.to(x.dtype)
        gated = result.new_empty(out.shape)
        act_mul(result, kind, gated)
        result = gated
    out.copy_(result)


def norm_linear(
    residual: Tensor,
    x: Tensor | None,
    norm: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    kind: str | None,
    new_residual: Tensor | None,
    out: Tensor,
) -> None:
    """`skinny_linear` of the RMS norm of `residual` + `x`, into `out`, and that sum into `new_residual`."""
    total, normed = residual if x is None else residual + x, residual.new_empty(residual.shape)
    if new_residual is not None:
        new_residual.copy_(total)
    rms_norm(total, norm, eps, None, 0.0, normed)
    skinny_linear(normed, weight, bias, kind, out)
