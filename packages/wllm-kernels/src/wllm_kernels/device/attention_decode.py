"""Launch of decode attention: short rows, padding rows and tokens of no row; and of the kernel that plans its work.

Short rows have at most 64 lines (queries times heads of a group), see csrc/attention.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wllm_kernels.compiler.families import FAMILIES
from wllm_kernels.device.kernel import Kernel, backends
from wllm_kernels.errors import InvalidArgument

MAX_SHORT_LINES = 64  # SHORT_ROW_LINES of attention.cuh
_TILE_LINES = _SLICE_CELLS = 16
_WARP = 32
_PLAN_THREADS = 1024
_PLAN_SHARED_BYTES = 4 * (3 * 1024 + 6 * 32)  # rows, samples and scratch of attention_plan.cu
# Of attention_work.cuh: ints of a WorkStart, arrivals of a block, ints of a row, floats behind a line of results.
_START_INTS, _ARRIVALS, _ROW_INTS, _STATISTICS = 16, 6, 3, 8
# Shared memory that the driver takes for each block.
_RESERVED_BYTES = 1024
_AMPERE = 80
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the kernels for one head_dim and size of cached elements are built."""

    warps: int
    shared_bytes: int
    blocks: int  # on a multiprocessor, where registers are the limit


def _shape(macros: dict[str, int], cached: torch.dtype) -> _Shape:
    head_dim, warps, item = macros["DECODE_HEAD_DIM"], macros["DECODE_WARPS"], cached.itemsize
    chunks = head_dim * item // 16
    cell_bytes = 16 * (chunks if chunks % 8 == 0 else chunks | 1) + (2 if cached == torch.int8 else 0)
    stages = macros["DECODE_STAGES" if item == 2 else "DECODE_STAGES_8BIT"]
    result_bytes = _TILE_LINES * (head_dim + _STATISTICS) * 4
    return _Shape(warps, warps * max(stages * 2 * _SLICE_CELLS * cell_bytes, result_bytes), macros["DECODE_BLOCKS"])


_Shapes = dict[tuple[bool, int, torch.dtype], _Shape]
_Kernels = dict[tuple[bool, int, torch.dtype, torch.dtype], Kernel]


def _build() -> tuple[_Shapes, _Kernels]:
    shapes, kernels = {}, {}
    for family in FAMILIES:
        macros = {name: int(value) for name, value in family.defines if name.startswith("DECODE_")}
        if not macros:
            continue
        head_dim, turing = macros["DECODE_HEAD_DIM"], max(family.targets) < _AMPERE
        for dtype, name in ((torch.float16, "f16"),) if turing else ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
            half = ((dtype, ""), (torch.int8, "_i8"))
            for cached, suffix in ((torch.float8_e4m3fn, "_e4m3"),) if macros["DECODE_E4M3"] else half:
                shape = shapes[turing, head_dim, cached] = _shape(macros, cached)
                kernels[turing, head_dim, dtype, cached] = Kernel(
                    family.name, f"attention_decode_{name}{suffix}", "9Q9q9iI2f", shape.warps * _WARP,
                    shape.shared_bytes, overlaps=True,
                )  # fmt: skip
    return shapes, kernels


# For Turing or newer GPUs, by head_dim and dtype of the cache; and by head_dim and dtypes of queries and cache.
_SHAPES, _KERNELS = _build()
_PLAN_KERNEL = Kernel("attention_plan", "attention_plan", "3Q10i", _PLAN_THREADS, _PLAN_SHARED_BYTES, overlaps=True)


def find_kernel(q: Tensor, kv: Tensor) -> Kernel | None:
    """The kernel with tensor cores for these dtypes, this head_dim and block size, if there is one."""
    block_size, head_dim = kv.shape[3:]
    return None if block_size % _SLICE_CELLS else _KERNELS.get((_on_turing(kv), head_dim, q.dtype, kv.dtype))


def can_plan(kv: Tensor) -> bool:
    """Whether a cache like this has a kernel for queries of some dtype."""
    return (_on_turing(kv), kv.shape[4], kv.dtype) in _SHAPES and kv.shape[3] % _SLICE_CELLS == 0


def _on_turing(kv: Tensor) -> bool:
    return backends[kv.device].properties(kv.device).capability < _AMPERE


def num_blocks(kv: Tensor) -> int:
    """Blocks of the decode grid: as many as the GPU runs at the same time."""
    shape = _SHAPES[_on_turing(kv), kv.shape[4], kv.dtype]
    gpu = backends[kv.device].properties(kv.device)
    by_shared_memory = gpu.max_shared_bytes // (shape.shared_bytes + _RESERVED_BYTES)
    return gpu.num_multiprocessors * max(1, min(shape.blocks, by_shared_memory))


def plan_elements(blocks: int, rows: int) -> int:
    """Size of the int32 tensor that plans so many rows for so many blocks."""
    return blocks * (_START_INTS + _ARRIVALS) + rows * _ROW_INTS


def workspace_floats(head_dim: int, blocks: int) -> int:
    """Size of the partial results of so many blocks."""
    return 2 * blocks * _TILE_LINES * (head_dim + _STATISTICS)


def launch_plan(
    kv: Tensor,
    max_blocks: int,
    seq_lens: Tensor,
    cu_q: Tensor,
    num_heads: int,
    causal: bool,
    window: int,
    blocks: int,
    plan: Tensor,
) -> None:
    """Fill `plan`, of `plan_elements`, with the work of a step for so many blocks."""
    num_kv_heads, block_size, head_dim = kv.shape[2:]
    warps = _SHAPES[_on_turing(kv), head_dim, kv.dtype].warps
    _PLAN_KERNEL.launch(
        kv.device, (1, 1, 1), seq_lens.data_ptr(), cu_q.data_ptr(), plan.data_ptr(), seq_lens.shape[0], num_kv_heads,
        num_heads // num_kv_heads, max_blocks, block_size, causal, window, blocks,
        backends[kv.device].properties(kv.device).num_multiprocessors, warps,
    )  # fmt: skip


def launch(
    kernel: Kernel,
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
    blocks: int,
    plan: Tensor,
    workspace: Tensor,
    out: Tensor,
) -> None:
    """Attention of short rows by `find_kernel`'s into `out`; padding rows and tokens of no row become 0.

    `plan` was filled for so many `blocks`; `workspace` holds `workspace_floats`. Raises `InvalidArgument` where 16
    bytes of a tensor that is read or written at once are not aligned.
    """
    num_kv_heads, block_size, _ = kv.shape[2:]
    num_tokens, num_heads, _ = q.shape
    item, q_at, kv_at, out_at = kv.element_size(), q.data_ptr(), kv.data_ptr(), out.data_ptr()
    scale_at, workspace_at = 0 if kv_scale is None else kv_scale.data_ptr(), workspace.data_ptr()
    q_token, q_head, q_last = q.stride()
    out_token, out_head, out_last = out.stride()
    block_bytes, plane_bytes, head_bytes, cell_bytes = (item * stride for stride in kv.stride()[:4])
    vectors = q_token | q_head | out_token | out_head
    addresses = q_at | kv_at | out_at | scale_at | workspace_at | block_bytes | plane_bytes | head_bytes | cell_bytes
    if q_last != 1 or out_last != 1 or vectors % 8 or addresses % 16:
        raise InvalidArgument(
            "q, kv, out, kv_scale or workspace starts at no multiple of 16 bytes or has vectors that do not (strides: "
            f"q {q.stride()}, kv {kv.stride()}, out {out.stride()} elements); pass aligned tensors"
        )
    rows, max_blocks = block_table.shape
    score_scale, cap_scale = _score_scales(scale, softcap)
    kernel.launch(
        q.device, (blocks, 1, 1), q_at, kv_at, scale_at, block_table.data_ptr(), seq_lens.data_ptr(), cu_q.data_ptr(),
        plan.data_ptr(), workspace_at, out_at, q_token, q_head, out_token, out_head, block_table.stride(0), block_bytes,
        plane_bytes, head_bytes, cell_bytes, rows, num_tokens, num_kv_heads, num_heads // num_kv_heads, max_blocks,
        block_size, causal, window, kv.shape[0], -(-(1 << 32) // block_size), score_scale, cap_scale,
    )  # fmt: skip


def _score_scales(scale: float, softcap: float) -> tuple[float, float]:
    # From a score (capped, if there is a cap) to an exponent of 2; from a score to the exponent of 2 in its tanh.
    if softcap:
        return softcap * _LOG2_E, 2.0 * _LOG2_E * scale / softcap
    return scale * _LOG2_E, 0.0
