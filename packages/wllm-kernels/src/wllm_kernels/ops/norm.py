"""RMS norm, alone or fused with the residual add."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.ops.checks import expect_contiguous, expect_device, expect_dtype, expect_shape


@overload
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: None = None, *, weight_offset: float = 0.0) -> Tensor: ...


@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, *, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]: ...


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, *, weight_offset: float = 0.0
) -> Tensor | tuple[Tensor, Tensor]:
    """RMS norm of `x` [.., size] with `weight` [size] (+ `weight_offset`); statistics in float32.

    All have one dtype. The rows of `x` and `residual` lie at even distances, each dense, where device code runs.
    With `residual`, adds `x` to it in place, norms the sum and returns (normed, residual).
    """
    expect_shape("weight", weight, x.shape[-1])
    expect_dtype("weight", weight, x.dtype)
    expect_device("weight", weight, x)
    expect_contiguous("weight", weight)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if residual is not None:
        expect_shape("residual", residual, *x.shape)
        expect_dtype("residual", residual, x.dtype)
        expect_device("residual", residual, x)
    dispatch.rms_norm(x, weight, eps, residual, weight_offset, out)
    return out if residual is None else (out, residual)
