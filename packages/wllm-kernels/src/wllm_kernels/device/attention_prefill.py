"""Launch of prefill attention: the rows of a step with many queries, on tensor cores.

`plan_tensors` counts tiles on the device, once a step; `launch` runs a layer, and leaves all other rows and tokens of
`out` alone. Neither waits for the device.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from wllm_kernels.compiler.families import runs_on
from wllm_kernels.compiler.prefill_shapes import HEAD_DIMS, PREFILL_SHAPES
from wllm_kernels.device.kernel import Kernel, backends
from wllm_kernels.errors import InvalidArgument, UnsupportedByGpu

_SHORT_ROW_LINES = 64  # of attention.cuh: rows of more lines are served here
_SMALL_LINES, _LARGE_LINES = 64, 128  # of attention_prefill_plan.cu
_LOG2_E = math.log2(math.e)
_ELEMENTS = {torch.float16: "f16", torch.bfloat16: "bf16"}
# FORMAT_* of attention_prefill.cuh.
_FORMATS = {torch.float16: 0, torch.bfloat16: 0, torch.int8: 1, torch.float8_e4m3fn: 2}

_PLAN = Kernel("attention_prefill_plan", "attention_prefill_plan", "3Q2i", 256, 32, overlaps=True)
_KERNELS = {
    shape: Kernel(shape.name, shape.name, "8Q11q9iI2f", shape.threads, shape.shared_bytes, overlaps=True)
    for shape in PREFILL_SHAPES
}


def supports(dtype: torch.dtype, head_dim: int, block_size: int, capability: int) -> bool:
    """Whether there is a kernel for queries of this dtype on a GPU of this capability (times ten)."""
    if capability < 80 and dtype != torch.float16:
        return False
    return dtype in _ELEMENTS and head_dim in HEAD_DIMS and block_size % 16 == 0


def plan_tensors(seq_lens: Tensor, cu_q: Tensor, group: int, tile_ends: Tensor | None = None) -> Tensor:
    """The tiles of a step's long rows, int32 [2, rows]; into `tile_ends` if given, without allocating."""
    rows = seq_lens.shape[0]
    if tile_ends is None:
        tile_ends = torch.empty(2, rows, dtype=torch.int32, device=seq_lens.device)
    _PLAN.launch(
        seq_lens.device, (2, 1, 1), seq_lens.data_ptr(), cu_q.data_ptr(), tile_ends.data_ptr(), rows, group
    )  # fmt: skip
    return tile_ends


def launch(
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
    tile_ends: Tensor,
    out: Tensor,
) -> None:
    """Attention of the long rows of `q` into `out`; `tile_ends` comes from `plan_tensors` of the same step."""
    num_tokens, num_heads, head_dim = q.shape
    _, _, num_kv_heads, block_size, _ = kv.shape
    group, rows = num_heads // num_kv_heads, seq_lens.shape[0]
    lines = num_tokens * group
    if lines <= _SHORT_ROW_LINES or not rows:
        return
    if scale <= 0.0:
        raise InvalidArgument(f"scale is {scale}; device code takes a positive one")
    properties = backends[q.device].properties(q.device)
    if kv.dtype == torch.float8_e4m3fn and properties.capability < 89:
        raise UnsupportedByGpu(
            f"kv is {kv.dtype} and the GPU has compute capability {properties.capability / 10}; FP8 needs 8.9: use int8"
        )
    small, large = _tiles(q.dtype, head_dim, properties.capability, properties.max_shared_bytes)
    kernel, tile_lines = small, _SMALL_LINES
    # Fewer than two large tiles for each multiprocessor leave places empty.
    enough_lines = 2 * properties.num_multiprocessors * _LARGE_LINES
    if large is not None and lines * num_kv_heads >= enough_lines:
        kernel, tile_lines = large, _LARGE_LINES
    max_tiles = _max_tiles(lines, rows, tile_lines)

    q_token, q_head, _ = q.stride()
    out_token, out_head, _ = out.stride()
    size = kv.element_size()
    block, plane, head, cell, _ = kv.stride()
    scale_block, scale_plane, scale_head, scale_pointer = 0, 0, 0, 0
    if kv_scale is not None:
        scale_block, scale_plane, scale_head, _ = kv_scale.stride()
        scale_pointer = kv_scale.data_ptr()
    q_pointer, kv_pointer, out_pointer = q.data_ptr(), kv.data_ptr(), out.data_ptr()
    # Elements of q, out and the scales have two bytes.
    strides = 2 * (q_token | q_head | out_token | out_head | scale_block | scale_plane | scale_head)
    if (strides | size * (block | plane | head | cell) | q_pointer | kv_pointer | out_pointer | scale_pointer) % 16:
        raise InvalidArgument(
            f"q, kv, kv_scale or out starts or strides at no multiple of 16 bytes (kv: {kv.stride()} elements); pass "
            "tensors whose vectors are aligned"
        )
    if softcap:
        cap_scale, score_scale = 2.0 * _LOG2_E * scale / softcap, softcap * _LOG2_E
    else:
        cap_scale, score_scale = 0.0, scale * _LOG2_E
    kernel.launch(
        q.device, (max_tiles * num_kv_heads, 1, 1), q_pointer, kv_pointer, scale_pointer, block_table.data_ptr(),
        seq_lens.data_ptr(), cu_q.data_ptr(), tile_ends.data_ptr() + (4 * rows if tile_lines == _LARGE_LINES else 0),
        out_pointer, 2 * q_token, 2 * q_head, 2 * out_token, 2 * out_head, size * block, size * plane, size * head,
        size * cell, 2 * scale_block, 2 * scale_plane, 2 * scale_head, rows, block_table.stride(0),
        block_table.shape[1], num_kv_heads, group, block_size, causal, window, _FORMATS[kv.dtype],
        -(-(1 << 32) // block_size), score_scale, cap_scale,
    )  # fmt: skip


@cache
def _tiles(dtype: torch.dtype, head_dim: int, capability: int, shared_bytes: int) -> tuple[Kernel, Kernel | None]:
    """The kernel with small tiles on a GPU, and the one with large tiles if it has the memory for them."""
    small: Kernel | None = None
    large: Kernel | None = None
    for shape, kernel in _KERNELS.items():
        if (shape.element, shape.head_dim) != (_ELEMENTS[dtype], head_dim) or not runs_on(shape.targets, capability):
            continue
        # A multiprocessor has little more than a block may have, and two blocks hide each other's waiting.
        if shape.lines == _LARGE_LINES and 2 * shape.shared_bytes <= shared_bytes:
            large = kernel
        elif shape.lines == _SMALL_LINES and shape.shared_bytes <= shared_bytes and small is None:
            small = kernel
    if small is None:
        raise UnsupportedByGpu(
            f"head_dim is {head_dim} and a block has at most {shared_bytes} bytes of shared memory on this GPU, too "
            "few; use a model with smaller heads"
        )
    return small, large


def _max_tiles(lines: int, rows: int, tile_lines: int) -> int:
    """The most tiles that `lines` in up to `rows` long rows can have."""
    long_rows = min(rows, lines // (_SHORT_ROW_LINES + 1))
    return (lines + long_rows * (tile_lines - 1)) // tile_lines
