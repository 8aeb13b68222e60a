"""Rotary embedding and the write of keys and values into the paged cache, in plain torch.

Rotates in the dtype of the model. The optional norm of each head is computed in float32 and rounded before its weight
is applied, as in `rms_norm`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wllm_kernels.plans import RopePlan
from wllm_kernels.reference.norm import normalise

INT8_MAX = 127
E4M3_MAX = 448


def rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    kv: Tensor,
    cells: Tensor,
    num_heads: int,
    num_kv_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    interleaved: bool,
    kv_scale: Tensor | None,
    plan_tensors: Sequence[Tensor],
    out: Tensor,
) -> None:
    """Rotated queries into `out`, rotated keys and plain values into their cells of `kv`."""
    if not plan_tensors:
        plan_tensors = rope_plan(positions, cos_sin, cells, kv.shape[3], qkv.dtype, interleaved).tensors
    cos, sin, block, offset, kept = plan_tensors
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, kv.shape[4])
    queries_keys = heads[:, : num_heads + num_kv_heads]
    if q_norm is not None or k_norm is not None:
        queries_keys = _norm_heads(queries_keys, num_heads, q_norm, k_norm, eps)
    rotated = _rotate(queries_keys, cos, sin, interleaved)
    out.copy_(rotated[:, :num_heads])
    new = torch.cat((rotated[:, num_heads:], heads[:, num_heads + num_kv_heads :]), 1)
    new = new.view(-1, 2, num_kv_heads, kv.shape[4])
    if block.numel() < new.shape[0]:
        new = new.index_select(0, kept)
    if kv_scale is not None:
        scale = new.float().abs().amax(-1).div_(INT8_MAX).clamp_(min=torch.finfo(torch.float16).tiny)
        scale = scale.to(kv_scale.dtype)
        kv_scale.permute(0, 3, 1, 2)[block, offset] = scale
        new = new.float().div_(scale.float().unsqueeze(-1)).round_().clamp_(-INT8_MAX, INT8_MAX)
    elif kv.dtype == torch.float8_e4m3fn:  # beyond its range lies NaN
        new = new.clamp(-E4M3_MAX, E4M3_MAX)
    kv.permute(0, 3, 1, 2, 4)[block, offset] = new.to(kv.dtype)


def rope_plan(
    positions: Tensor, cos_sin: Tensor, cells: Tensor, block_size: int, dtype: torch.dtype, interleaved: bool
) -> RopePlan:
    """Rows of cosine and signed sine, and where each token's cell lies; `kept` are the tokens whose cell is not -1."""
    made_for = positions, cos_sin, cells
    cos, sin = cos_sin.index_select(0, positions).to(dtype).unsqueeze(1).chunk(2, -1)
    if interleaved:
        cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
    else:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    kept = (cells >= 0).nonzero().view(-1)
    cells = cells.index_select(0, kept)
    return RopePlan((cos, sin, cells // block_size, cells % block_size, kept), made_for)


def _norm_heads(heads: Tensor, num_heads: int, q_norm: Tensor | None, k_norm: Tensor | None, eps: float) -> Tensor:
    queries, keys = heads[:, :num_heads], heads[:, num_heads:]
    if q_norm is not None:
        queries = normalise(queries, eps) * q_norm
    if k_norm is not None:
        keys = normalise(keys, eps) * k_norm
    return torch.cat((queries, keys), 1)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    rotary_dim = cos.shape[-1]
    turned = heads[..., :rotary_dim]
    if interleaved:
        swapped = turned.reshape(*turned.shape[:-1], -1, 2).flip(-1).flatten(-2)
    else:
        swapped = turned.roll(rotary_dim // 2, -1)
    rotated = torch.addcmul(turned * cos, swapped, sin)
    if rotary_dim == heads.shape[-1]:
        return rotated
    return torch.cat((rotated, heads[..., rotary_dim:]), -1)
