"""Attention over a paged KV cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.device import attention as device_attention
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.checks import (
    are_same,
    expect_contiguous,
    expect_dense_rows,
    expect_device,
    expect_dtype,
    expect_kv,
    expect_shape,
    result_like,
)
from wllm_kernels.plans import AttentionPlan
from wllm_kernels.reference import attention_plan as reference_plan

_WINDOW_LIMIT = 1 << 31  # of the kernels' integers


def paged_attention(
    q: Tensor,
    kv: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_q: Tensor,
    *,
    scale: float,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    kv_scale: Tensor | None = None,
    plan: AttentionPlan | None = None,
    workspace: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of `q` [tokens, num_heads, head_dim] over `kv` [num_blocks, 2, num_kv_heads, block_size, head_dim].

    Row r of `block_table` (int32 [rows, max_blocks]) has the `cu_q[r]:cu_q[r + 1]` tokens of `q` as its queries (int32
    [rows + 1]); they are the last of its `seq_lens[r]` (int32 [rows]) cached tokens. `window` > 0: a query at p sees
    (p - window, p]. `softcap` > 0 caps the scaled scores by tanh. `kv_scale`: scales of an int8 cache [num_blocks, 2,
    num_kv_heads, block_size]. `plan` saves work that all layers share, and with it `workspace` (flat, the dtype of
    `kv`, as many elements as the plan says) an allocation. Tokens of no row get 0. Returns `out` [tokens, num_heads,
    head_dim] of the dtype of `q`. Raises `InvalidArgument`.
    """
    num_kv_heads, _, head_dim = expect_kv(kv, kv_scale)
    expect_shape("q", q, None, None, head_dim)
    if q.shape[1] % num_kv_heads:
        raise InvalidArgument(f"q has {q.shape[1]} heads over {num_kv_heads} KV heads; need a multiple")
    expect_device("kv", kv, q)
    if plan is None or not are_same(plan.made_for, (block_table, seq_lens, cu_q)):
        _check_rows(block_table, seq_lens, cu_q, q)
    if plan is None:
        _check_window(causal, window)
    elif (plan.causal, plan.window, plan.num_heads) != (causal, window, q.shape[1]):
        raise InvalidArgument(
            f"causal={causal}, window={window}, {q.shape[1]} heads with a plan for causal={plan.causal}, "
            f"window={plan.window}, {plan.num_heads} heads; make a plan for each kind of layer"
        )
    if not 0.0 <= softcap < math.inf:
        raise InvalidArgument(f"softcap is {softcap}; pass 0 (off) or a positive cap")
    if out is None:
        out = result_like(None, q)
    else:
        expect_shape("out", out, *q.shape)
        expect_dtype("out", out, q.dtype)
        expect_device("out", out, q)
    if workspace is not None:
        expect_shape("workspace", workspace, None)
        expect_dtype("workspace", workspace, kv.dtype)
        expect_device("workspace", workspace, q)
        expect_contiguous("workspace", workspace)
        if plan is None:
            raise InvalidArgument(
                f"workspace has {workspace.numel()} elements and plan is None; pass the plan that tells the size"
            )
        if workspace.numel() < plan.workspace_elements:
            raise InvalidArgument(
                f"workspace has {workspace.numel()} elements; the plan needs {plan.workspace_elements}"
            )
    tensors, sizes = ((), ()) if plan is None else (plan.tensors, plan.sizes)
    dispatch.paged_attention(
        q, kv, block_table, seq_lens, cu_q, scale, causal, window, softcap, kv_scale, tensors, sizes, workspace, out
    )
    return out


def attention_plan(
    kv: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_q: Tensor,
    *,
    num_heads: int,
    causal: bool = True,
    window: int = 0,
    max_queries: int | None = None,
    out: AttentionPlan | None = None,
) -> AttentionPlan:
    """The plan of a step for every layer with `num_heads` query heads whose KV cache has the shape and dtype of `kv`.

    The tables are those of `paged_attention`. No row has more than `max_queries` queries (None: unknown); a small
    number spares the GPU a kernel. On CUDA this neither waits for the device nor checks lengths, and `out`, an earlier
    plan for as many rows, is filled anew without allocating, in a CUDA graph too; elsewhere `out` is not used. Raises
    `InvalidArgument`, on the CPU also for lengths that do not fit the block table.
    """
    expect_shape("kv", kv, None, 2, None, None, None)
    if num_heads <= 0 or num_heads % kv.shape[2]:
        raise InvalidArgument(f"num_heads is {num_heads} over {kv.shape[2]} KV heads; need a multiple")
    _check_rows(block_table, seq_lens, cu_q, kv)
    _check_window(causal, window)
    if dispatch.paged_attention.implementation_names.get(kv.device.type) == "device":
        return device_attention.attention_plan(
            kv, block_table, seq_lens, cu_q, num_heads, causal, window, max_queries, out
        )
    return reference_plan.attention_plan(kv, block_table, seq_lens, cu_q, num_heads, causal, window)


def _check_rows(block_table: Tensor, seq_lens: Tensor, cu_q: Tensor, first: Tensor) -> None:
    expect_shape("seq_lens", seq_lens, None)
    rows = seq_lens.shape[0]
    expect_shape("block_table", block_table, rows, None)
    expect_shape("cu_q", cu_q, rows + 1)
    for name, tensor in (("block_table", block_table), ("seq_lens", seq_lens), ("cu_q", cu_q)):
        expect_dtype(name, tensor, torch.int32)
        expect_device(name, tensor, first)
    expect_contiguous("seq_lens", seq_lens)
    expect_contiguous("cu_q", cu_q)
    expect_dense_rows("block_table", block_table)


def _check_window(causal: bool, window: int) -> None:
    if not 0 <= window < _WINDOW_LIMIT or (window and not causal):
        raise InvalidArgument(
            f"window is {window} with causal={causal}; pass 0 (off), or a size below 2**31 with causal=True"
        )
