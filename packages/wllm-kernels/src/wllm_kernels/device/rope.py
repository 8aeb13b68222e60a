"""Launch of the kernels that turn queries and keys and write the KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wllm_kernels.device.arguments import FLOAT_SUFFIXES, is_aligned
from wllm_kernels.device.kernel import Kernel
from wllm_kernels.errors import InvalidArgument

_THREADS = 128
_LAYOUT = "4Q4q5Q11if"
_LARGEST_TEAM = 32
_TEAM_HEADS = 2  # ROPE_HEADS of rope.cu
# A step of so many lanes with one head each fills a large GPU; beyond, fewer lanes with more loads each are faster.
_MANY_LANES = 1 << 16
# A lane of the kernels for single elements holds so many pairs.
_LARGEST_HEAD_DIM = 2 * 8 * _LARGEST_TEAM


def _kernels(family: str, cache_suffix: str, dtype: torch.dtype, suffix: str) -> tuple[Kernel, Kernel]:
    names = (f"rope_kv_write_{suffix}{cache_suffix}", f"rope_kv_write_elements_{suffix}{cache_suffix}")
    runs, elements = (Kernel(family, name, _LAYOUT, _THREADS, overlaps=True) for name in names)
    return runs, elements


# By the dtypes of model and cache: the kernels for 16-byte runs and for single elements.
_KERNELS = {
    (dtype, cache or dtype): _kernels(family, cache_suffix, dtype, suffix)
    for dtype, suffix in FLOAT_SUFFIXES
    for family, cache, cache_suffix in (
        ("rope", None, ""),
        ("rope", torch.int8, "_i8"),
        ("rope_e4m3", torch.float8_e4m3fn, "_e4m3"),
    )
}


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
    """Rotated queries into `out`, rotated keys and plain values into their cells of `kv`. The plan is not used."""
    tokens = cells.shape[0]
    if not tokens:
        return
    kernels = _KERNELS.get((qkv.dtype, kv.dtype))
    if kernels is None:
        raise InvalidArgument(
            f"kv has dtype {kv.dtype} and qkv {qkv.dtype}; device code takes a qkv of torch.float32, torch.float16 or "
            "torch.bfloat16 and a kv of its dtype, torch.int8 or torch.float8_e4m3fn"
        )
    if cos_sin.dtype not in (qkv.dtype, torch.float32):
        raise InvalidArgument(f"cos_sin has dtype {cos_sin.dtype}; pass torch.float32 or {qkv.dtype}, the dtype of qkv")
    block_size, head_dim = kv.shape[3:]
    rotary_dim = cos_sin.shape[1]
    if head_dim % 2 or head_dim > _LARGEST_HEAD_DIM:
        raise InvalidArgument(f"head_dim is {head_dim}; device code takes even ones up to {_LARGEST_HEAD_DIM}")
    block, side, head, cell = kv.stride()[:4]
    qkv_at, angles_at, kv_at, out_at = qkv.data_ptr(), cos_sin.data_ptr(), kv.data_ptr(), out.data_ptr()
    q_norm_at = 0 if q_norm is None else q_norm.data_ptr()
    k_norm_at = 0 if k_norm is None else k_norm.data_ptr()
    # What a lane takes at a time: two runs of 16 bytes, or two elements.
    span = 32 // qkv.element_size()
    in_runs = not (head_dim % span or rotary_dim % span) and head_dim <= span * _LARGEST_TEAM
    addresses = qkv_at | angles_at | kv_at | out_at | q_norm_at | k_norm_at
    if not in_runs or not is_aligned(addresses | (block | side | head | cell) * kv.element_size()):
        in_runs, span = False, 2
    team_log2 = (min(_LARGEST_TEAM, -(-head_dim // span)) - 1).bit_length()
    heads = num_heads + 2 * num_kv_heads
    team_heads = _TEAM_HEADS if in_runs and tokens * heads << team_log2 > _MANY_LANES else 1
    teams = -(-heads // team_heads)
    blocks = -(-(tokens * teams << team_log2) // _THREADS)
    kernels[0 if in_runs else 1].launch(
        qkv.device, (blocks, 1, 1), qkv_at, positions.data_ptr(), angles_at, kv_at, block, side, head, cell,
        cells.data_ptr(), q_norm_at, k_norm_at, 0 if kv_scale is None else kv_scale.data_ptr(), out_at, tokens,
        num_heads, num_kv_heads, head_dim, rotary_dim, block_size, team_log2, teams, team_heads, interleaved,
        cos_sin.dtype == torch.float32, eps,
    )  # fmt: skip
