"""RMS norm, alone or fused with the residual add."""

from __future__ import annotations

from typing import overload

from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.ops.checks import expect_contiguous, expect_device, expect_dtype, expect_shape, result_like


@overload
def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: None = None,
    *,
    weight_offset: float = 0.0,
    out: Tensor | None = None,
) -> Tensor: ...


@overload
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, *, weight_offset: float = 0.0, out: Tensor | None = None
) -> tuple[Tensor, Tensor]: ...


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    residual: Tensor | None = None,
    *,
    weight_offset: float = 0.0,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """RMS norm of `x` [.., size] with `weight` [size] (+ `weight_offset`); statistics in float32.

    With `residual`, adds `x` to it in place, norms the sum and returns (normed, residual). All have one dtype; `out`
    may be `x`. On CUDA the rows of `x` and `residual` are dense and lie at even distances. Raises `InvalidArgument`.
    """
    expect_shape("weight", weight, x.shape[-1])
    expect_dtype("weight", weight, x.dtype)
    expect_device("weight", weight, x)
    expect_contiguous("weight", weight)
    out = result_like(out, x)
    if residual is not None:
        expect_shape("residual", residual, *x.shape)
        expect_dtype("residual", residual, x.dtype)
        expect_device("residual", residual, x)
    dispatch.rms_norm(x, weight, eps, residual, weight_offset, out)
    return out if residual is None else (out, residual)
