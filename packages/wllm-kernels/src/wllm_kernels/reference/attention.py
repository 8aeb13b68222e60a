"""Paged attention in plain torch: gather a segment's blocks into contiguous keys and values, then ordinary attention.

Computes in float32 whatever the dtype of the cache. Cells that no row owns never reach a result, not even as NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from wllm_kernels.reference.attention_plan import Segment, attention_plan, segments

# Scores of a slice of queries stay below 256 MiB of float32, however long the prompt is.
_SCORE_ELEMENTS = 64 * 1024 * 1024


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
    if not plan_sizes:
        plan = attention_plan(kv, block_table, seq_lens, cu_q, q.shape[1], causal, window)
        plan_tensors, plan_sizes = plan.tensors, plan.sizes
    if plan_sizes[0] < q.shape[0]:
        out.zero_()
    for segment in segments(plan_tensors, plan_sizes):
        keys, values = _gather(segment, kv, kv_scale, workspace)
        attend = _decode if segment.num_queries == 1 else _prefill
        attend(segment, q, keys, values, scale, softcap, out)


def _gather(segment: Segment, kv: Tensor, kv_scale: Tensor | None, workspace: Tensor | None) -> tuple[Tensor, Tensor]:
    num_kv_heads, block_size, head_dim = kv.shape[2:]
    blocks = segment.blocks
    dtype = kv.dtype
    if dtype == torch.float8_e4m3fn:  # torch gathers no FP8
        kv = kv.view(torch.uint8)
        workspace = None if workspace is None else workspace.view(torch.uint8)
    if kv.is_contiguous():
        rows = kv.view(-1, block_size * head_dim)
        if workspace is None:
            gathered = rows.index_select(0, blocks)
        else:
            target = workspace[: blocks.numel() * rows.shape[1]].view(-1, rows.shape[1])
            gathered = torch.index_select(rows, 0, blocks, out=target)
    else:
        gathered = kv[_unravel(blocks, num_kv_heads)]
    gathered = gathered.view(dtype)
    if kv_scale is not None:
        scales = kv_scale[_unravel(blocks, num_kv_heads)].float().unsqueeze(-1)
        gathered = gathered.view(-1, block_size, head_dim).float().mul_(scales)
    # One head of one row after the other: [2, rows * num_kv_heads, cells, head_dim].
    gathered = gathered.float().view(2, segment.num_rows * num_kv_heads, -1, head_dim)
    if segment.stale.numel():
        gathered.view(-1, head_dim).index_fill_(0, segment.stale, 0.0)
    keys, values = gathered[:, :, segment.first_cell : segment.last_cell].unbind(0)
    return keys, values


def _unravel(blocks: Tensor, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    return blocks // (2 * num_kv_heads), blocks // num_kv_heads % 2, blocks % num_kv_heads


def _decode(
    segment: Segment, q: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float, out: Tensor
) -> None:
    first, rows = segment.first_token, segment.num_rows
    queries = q[first : first + rows] if first >= 0 else q.index_select(0, segment.tokens)
    # The query heads that share a KV head are the M of one matrix product.
    queries = queries.float().reshape(keys.shape[0], -1, q.shape[2])
    keys = keys.transpose(1, 2)
    if softcap or not segment.mask.numel():
        scores = torch.bmm(queries * scale, keys)
        if softcap:
            scores = _cap(scores, softcap)
            if segment.mask.numel():
                scores += segment.mask
    else:
        scores = torch.baddbmm(segment.mask, queries, keys, alpha=scale)
    result = torch.bmm(torch.softmax(scores, -1), values).view(rows, *q.shape[1:])
    if first >= 0:
        out[first : first + rows] = result
    else:
        out.index_copy_(0, segment.tokens, result.to(out.dtype))


def _prefill(
    segment: Segment, q: Tensor, keys: Tensor, values: Tensor, scale: float, softcap: float, out: Tensor
) -> None:
    span = slice(segment.first_token, segment.first_token + segment.num_queries)
    num_kv_heads = keys.shape[0]
    group = q.shape[1] // num_kv_heads
    # KV heads are the batch and the query heads of a group its heads: keys and values repeat by a stride of 0.
    queries = q[span].float().view(segment.num_queries, num_kv_heads, group, -1).permute(1, 2, 0, 3)
    keys = keys.unsqueeze(1).expand(-1, group, -1, -1)
    values = values.unsqueeze(1).expand(-1, group, -1, -1)
    mask = segment.mask if segment.mask.numel() else None
    # On CUDA torch's fused attention is wrong for a window that hides a whole tile of keys (seen with torch 2.11).
    if softcap or q.is_cuda:
        result = _plain_attention(queries, keys, values, mask, segment.causal, scale, softcap)
    else:
        result = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=segment.causal, scale=scale
        )
    out[span] = result.permute(2, 0, 1, 3).reshape(segment.num_queries, *q.shape[1:])


def _plain_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float, softcap: float
) -> Tensor:
    result = torch.empty_like(queries)
    num_queries, num_keys = queries.shape[2], keys.shape[2]
    step = max(1, _SCORE_ELEMENTS // (queries.shape[:2].numel() * num_keys))
    for first in range(0, num_queries, step):
        part = slice(first, first + step)
        scores = torch.matmul(queries[:, :, part] * scale, keys.transpose(-1, -2))
        if softcap:
            scores = _cap(scores, softcap)
        if mask is not None:
            scores += mask[part]
        elif causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1 + first)
            scores.masked_fill_(hidden, -torch.inf)
        result[:, :, part] = torch.matmul(torch.softmax(scores, -1), values)
    return result


def _cap(scores: Tensor, softcap: float) -> Tensor:
    return scores.div_(softcap).tanh_().mul_(softcap)
