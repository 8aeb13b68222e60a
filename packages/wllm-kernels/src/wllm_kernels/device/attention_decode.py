"""Launch of decode attention: short rows, padding rows and tokens of no row; and of the kernel that plans its work.

Short rows have at most 64 lines (queries times heads of a group), see csrc/attention.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wllm_kernels.compiler.families import FAMILIES
from wllm_kernels.device.kernel import Kernel, backends

MAX_SHORT_LINES = 64  # SHORT_ROW_LINES of attention.cuh
_TILE_LINES = _SLICE_CELLS = 16
_WARP = 32
_PLAN_THREADS = 1024
# Of a plan, for each block: WorkStart and 3 * 2 arrivals (attention_work.cuh).
_START_INTS, _ARRIVALS = 8, 6
# Shared memory that the driver takes for each block.
_RESERVED_BYTES = 1024
# A block with less to do is not worth its part of the merge.
_MIN_UNITS = 1
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the kernels for one head_dim and size of cached elements are built."""

    head_dim: int
    warps: int
    shared_bytes: int
    blocks: int  # of a multiprocessor, if its registers are the limit

    @property
    def unit_cells(self) -> int:
        return self.warps * _SLICE_CELLS

    @property
    def partial_floats(self) -> int:
        return _TILE_LINES * (self.head_dim + 8)


def _shape(defines: dict[str, str], item: int, scaled: bool) -> _Shape:
    head_dim, warps = int(defines["DECODE_HEAD_DIM"]), int(defines["DECODE_WARPS"])
    stages = int(defines["DECODE_STAGES" if item == 2 else "DECODE_STAGES_8BIT"])
    chunks = head_dim * item // 16
    line_bytes = 16 * (chunks if chunks % 8 == 0 else chunks | 1)
    stage_bytes = 2 * _SLICE_CELLS * (line_bytes + 2 * scaled)
    result_bytes = _TILE_LINES * (head_dim + 8) * 4
    return _Shape(head_dim, warps, warps * max(stages * stage_bytes, result_bytes), int(defines["DECODE_BLOCKS"]))


_SHAPES: dict[tuple[int, torch.dtype], _Shape] = {}
_KERNELS: dict[tuple[int, torch.dtype, torch.dtype], Kernel] = {}
for _family in FAMILIES:
    _defines = dict(_family.defines)
    if "DECODE_HEAD_DIM" not in _defines:
        continue
    for _dtype, _name in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
        for _cached, _suffix in ((_dtype, ""), (torch.int8, "_i8"), (torch.float8_e4m3fn, "_e4m3")):
            if (_cached == torch.float8_e4m3fn) != (_defines["DECODE_E4M3"] == "1"):
                continue
            _built = _shape(_defines, _cached.itemsize, _cached == torch.int8)
            _SHAPES[_built.head_dim, _cached] = _built
            _KERNELS[_built.head_dim, _dtype, _cached] = Kernel(
                _family.name, f"attention_decode_{_name}{_suffix}", "9Q9q8i2f", _built.warps * _WARP,
                _built.shared_bytes,
            )  # fmt: skip

_PLAN_KERNEL = Kernel("attention_plan", "attention_plan", "3Q10i", _PLAN_THREADS, 4 * _WARP)


def has_kernel(q: Tensor, kv: Tensor) -> bool:
    """Whether there is a kernel with tensor cores for these dtypes, this head_dim and block size."""
    return (kv.shape[4], q.dtype, kv.dtype) in _KERNELS and kv.shape[3] % _SLICE_CELLS == 0


def can_plan(kv: Tensor) -> bool:
    """Whether a plan for this cache has something to plan."""
    return (kv.shape[4], kv.dtype) in _SHAPES and kv.shape[3] % _SLICE_CELLS == 0


def num_blocks(kv: Tensor) -> int:
    """Blocks of the decode grid: as many as the GPU runs at the same time."""
    shape = _SHAPES[kv.shape[4], kv.dtype]
    gpu = backends[kv.device].properties(kv.device)
    by_shared_memory = gpu.max_shared_bytes // (shape.shared_bytes + _RESERVED_BYTES)
    return gpu.num_multiprocessors * max(1, min(shape.blocks, by_shared_memory))


def plan_elements(kv: Tensor, rows: int) -> int:
    """Size of the int32 tensor that a plan of so many rows is."""
    elements = num_blocks(kv) * (_START_INTS + _ARRIVALS) + rows + 1
    return -(-elements // _START_INTS) * _START_INTS


def workspace_bytes(kv: Tensor) -> int:
    """Size of the results of the grid's blocks that await their merge."""
    return 2 * num_blocks(kv) * _SHAPES[kv.shape[4], kv.dtype].partial_floats * 4


def launch_plan(
    kv: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_q: Tensor,
    num_heads: int,
    causal: bool,
    window: int,
    plan: Tensor,
) -> None:
    """Fill `plan`, of `plan_elements`, with the work of a step."""
    num_kv_heads, block_size, head_dim = kv.shape[2:]
    rows, max_blocks = block_table.shape
    _PLAN_KERNEL.launch(
        kv.device, (1, 1, 1), seq_lens.data_ptr(), cu_q.data_ptr(), plan.data_ptr(), rows, num_kv_heads,
        num_heads // num_kv_heads, max_blocks * block_size, causal, window, num_blocks(kv),
        _SHAPES[head_dim, kv.dtype].unit_cells, _MIN_UNITS, 0,
    )  # fmt: skip


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
    plan: Tensor,
    workspace: Tensor,
    out: Tensor,
) -> None:
    """Attention of short rows into `out`; padding rows and tokens of no row become 0."""
    num_kv_heads, block_size, head_dim = kv.shape[2:]
    num_tokens, num_heads, _ = q.shape
    block_bytes, plane_bytes, head_bytes, cell_bytes = (kv.element_size() * stride for stride in kv.stride()[:4])
    q_token, q_head, _ = q.stride()
    out_token, out_head, _ = out.stride()
    rows, max_blocks = block_table.shape
    score_scale, cap_scale = score_scales(scale, softcap)
    _KERNELS[head_dim, q.dtype, kv.dtype].launch(
        q.device, (num_blocks(kv), 1, 1), q.data_ptr(), kv.data_ptr(), 0 if kv_scale is None else kv_scale.data_ptr(),
        block_table.data_ptr(), seq_lens.data_ptr(), cu_q.data_ptr(), plan.data_ptr(), workspace.data_ptr(),
        out.data_ptr(), q_token, q_head, out_token, out_head, block_table.stride(0), block_bytes, plane_bytes,
        head_bytes, cell_bytes, rows, num_tokens, num_kv_heads, num_heads // num_kv_heads, max_blocks, block_size, causal, window, score_scale,
        cap_scale,
    )  # fmt: skip


def score_scales(scale: float, softcap: float) -> tuple[float, float]:
    """From a score (capped, if there is a cap) to an exponent of 2; from a score to the exponent of 2 in its tanh."""
    if softcap:
        return softcap * _LOG2_E, 2.0 * _LOG2_E * scale / softcap
    return scale * _LOG2_E, 0.0
