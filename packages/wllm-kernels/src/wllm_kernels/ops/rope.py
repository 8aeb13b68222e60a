"""Rotary embedding fused with the write into the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.checks import (
    are_same,
    expect_contiguous,
    expect_device,
    expect_dtype,
    expect_kv,
    expect_shape,
    result_tensor,
)
from wllm_kernels.plans import RopePlan
from wllm_kernels.reference import rope as reference_rope


def rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    kv: Tensor,
    cells: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    interleaved: bool = False,
    kv_scale: Tensor | None = None,
    plan: RopePlan | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Norm and rotate the heads of `qkv` [tokens, (num_heads + 2 * num_kv_heads) * head_dim], write keys and values.

    `q_norm`, `k_norm` [head_dim]: weights of an RMS norm of each head. `cos_sin` [max_positions, rotary_dim]: cosines,
    then sines; row `positions[t]` (int64) turns token t; only the first `rotary_dim` dims of a head turn, as two halves
    (neox) or as `interleaved` pairs. Keys and values go to `cells[t]` (int64: block id * block_size + offset; -1 skips
    the token) of `kv` [num_blocks, 2, num_kv_heads, block_size, head_dim], as int8 with `kv_scale` (float16, the shape
    of `kv` less head_dim), as float8_e4m3fn (clamped to +-448), or as they are. `cos_sin` is float32 or of the dtype of
    `qkv`; the weights are of that. Returns the queries in `out` [tokens, num_heads, head_dim]. Raises
    `InvalidArgument`.
    """
    kv_heads, _, head_dim = expect_kv(kv, kv_scale)
    if kv_heads != num_kv_heads:
        raise InvalidArgument(f"num_kv_heads is {num_kv_heads} for a cache of {kv_heads} KV heads; they must agree")
    tokens = cells.shape[0]
    expect_shape("qkv", qkv, tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    expect_contiguous("qkv", qkv)
    expect_device("kv", kv, qkv)
    expect_device("cells", cells, qkv)
    if plan is None or not are_same(plan.made_for, (positions, cos_sin, cells)):
        _check_step(tokens, head_dim, positions, cos_sin, cells)
    if q_norm is not None:
        _check_norm("q_norm", q_norm, head_dim, qkv)
    if k_norm is not None:
        _check_norm("k_norm", k_norm, head_dim, qkv)
    out = result_tensor(out, qkv, tokens, num_heads, head_dim)
    tensors = () if plan is None else plan.tensors
    dispatch.rope_kv_write(
        qkv, positions, cos_sin, kv, cells, num_heads, num_kv_heads, q_norm, k_norm, eps, interleaved, kv_scale,
        tensors, out,
    )  # fmt: skip
    return out


def rope_plan(
    kv: Tensor, positions: Tensor, cos_sin: Tensor, cells: Tensor, *, dtype: torch.dtype, interleaved: bool = False
) -> RopePlan:
    """The plan of a step for every layer with this `cos_sin`, a KV cache shaped like `kv` and `qkv` of this `dtype`."""
    expect_shape("kv", kv, None, 2, None, None, None)
    _check_step(positions.shape[0], kv.shape[4], positions, cos_sin, cells)
    if dispatch.rope_kv_write.implementation_names.get(positions.device.type) == "device":
        return RopePlan((), (positions, cos_sin, cells))
    return reference_rope.rope_plan(positions, cos_sin, cells, kv.shape[3], dtype, interleaved)


def _check_norm(name: str, weight: Tensor, head_dim: int, qkv: Tensor) -> None:
    expect_shape(name, weight, head_dim)
    expect_dtype(name, weight, qkv.dtype)
    expect_contiguous(name, weight)
    expect_device(name, weight, qkv)


def _check_step(tokens: int, head_dim: int, positions: Tensor, cos_sin: Tensor, cells: Tensor) -> None:
    expect_shape("positions", positions, tokens)
    expect_shape("cells", cells, tokens)
    expect_dtype("positions", positions, torch.int64)
    expect_dtype("cells", cells, torch.int64)
    expect_shape("cos_sin", cos_sin, None, None)
    if not 0 < cos_sin.shape[1] <= head_dim or cos_sin.shape[1] % 2:
        raise InvalidArgument(
            f"cos_sin has {cos_sin.shape[1]} columns for head_dim {head_dim}; pass an even rotary_dim up to head_dim"
        )
    for name, tensor in (("positions", positions), ("cells", cells), ("cos_sin", cos_sin)):
        expect_contiguous(name, tensor)
        expect_device(name, tensor, cells)
