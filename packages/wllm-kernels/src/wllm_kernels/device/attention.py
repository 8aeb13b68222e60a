"""Paged attention on a GPU: which kernel serves which rows, and the plan of a step.

Rows of few lines (queries times heads of a group) are decode's, the others prefill's; float32 and head sizes without a
kernel for tensor cores go to the plain kernel, which serves every row and needs no plan. Nothing here reads a length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wllm_kernels.device import attention_decode, attention_plain, attention_prefill
from wllm_kernels.device.kernel import backends
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.plans import AttentionPlan


def attention_plan(
    kv: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_q: Tensor,
    num_heads: int,
    causal: bool,
    window: int,
    max_queries: int | None,
    out: AttentionPlan | None,
) -> AttentionPlan:
    """The plan of a step; without rows that need prefill if no row has more than `max_queries` queries."""
    if not attention_decode.can_plan(kv):
        return AttentionPlan(causal, window, num_heads, (), (), 0, (block_table, seq_lens, cu_q))
    group, rows = num_heads // kv.shape[2], block_table.shape[0]
    blocks = attention_decode.num_blocks(kv)
    has_long_rows = max_queries is None or max_queries * group > attention_decode.MAX_SHORT_LINES
    sizes = (blocks, rows, *kv.shape[2:])
    if out is None:
        elements = attention_decode.plan_elements(blocks, rows)
        decode_plan, tiles = torch.empty(elements, dtype=torch.int32, device=kv.device), None
    elif (out.causal, out.window, out.num_heads, out.sizes) != (causal, window, num_heads, sizes) or (
        len(out.tensors) != 1 + has_long_rows
    ):
        raise InvalidArgument(
            f"out is a plan for {out.sizes}, {out.num_heads} heads, causal={out.causal}, window={out.window}; pass one "
            f"for {sizes}, {num_heads} heads, causal={causal}, window={window} and the same max_queries"
        )
    else:
        decode_plan, tiles = out.tensors[0], out.tensors[-1]
    attention_decode.launch_plan(
        kv, block_table.shape[1], seq_lens, cu_q, num_heads, causal, window, blocks, decode_plan
    )
    tensors: tuple[Tensor, ...] = (decode_plan,)
    if has_long_rows:
        tensors = decode_plan, attention_prefill.plan_tensors(seq_lens, cu_q, group, tiles)
    if out is not None:
        return out
    workspace_bytes = 4 * attention_decode.workspace_floats(kv.shape[4], blocks)
    workspace_elements = workspace_bytes // kv.element_size()
    return AttentionPlan(causal, window, num_heads, tensors, sizes, workspace_elements, (block_table, seq_lens, cu_q))


def paged_attention(
    q: Tensor,
    kv: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_q: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    kv_scale: Tensor | None,
    plan_tensors: Sequence[Tensor],
    plan_sizes: Sequence[int],
    workspace: Tensor | None,
    out: Tensor,
) -> None:
    """Attention of `q` over the cached tokens of its rows into `out`; tokens of no row become 0."""
    kernel = attention_decode.find_kernel(q, kv)
    if kernel is None:
        attention_plain.launch(q, kv, block_table, seq_lens, cu_q, scale, causal, window, softcap, kv_scale, out)
        return
    if not plan_tensors:
        plan = attention_plan(kv, block_table, seq_lens, cu_q, q.shape[1], causal, window, q.shape[0], None)
        plan_tensors, plan_sizes = plan.tensors, plan.sizes
    blocks, *planned = plan_sizes
    wanted = [seq_lens.shape[0], *kv.shape[2:]]
    if planned != wanted:
        raise InvalidArgument(
            f"the plan is for {planned} (rows, num_kv_heads, block_size, head_dim), the arguments have {wanted}; make "
            "a plan for each step and shape of the cache"
        )
    if len(plan_tensors) > 1:
        capability = backends[q.device].properties(q.device).capability
        if not attention_prefill.supports(q.dtype, kv.shape[4], kv.shape[3], capability):
            attention_plain.launch(q, kv, block_table, seq_lens, cu_q, scale, causal, window, softcap, kv_scale, out)
            return
        attention_prefill.launch(
            q, kv, block_table, seq_lens, cu_q, scale, causal, window, softcap, kv_scale, plan_tensors[1], out
        )
    floats = attention_decode.workspace_floats(wanted[3], blocks)
    if workspace is None:
        workspace = torch.empty(floats, dtype=torch.float32, device=q.device)
    elif workspace.nbytes < 4 * floats:
        raise InvalidArgument(
            f"workspace has {workspace.nbytes} bytes and needs {4 * floats}; make a plan for this dtype of kv, which "
            "tells the size"
        )
    attention_decode.launch(
        kernel, q, kv, block_table, seq_lens, cu_q, scale, causal, window, softcap, kv_scale, blocks, plan_tensors[0],
        workspace, out,
    )  # fmt: skip
