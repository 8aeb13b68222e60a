"""Launch of prefill attention: the rows of a step with many queries, on tensor cores.

`plan_tensors` counts tiles on the device, once a step; `launch` runs a layer, and leaves all other rows and tokens of
`out` alone. Neither waits for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wllm_kernels.compiler.families import runs_on
from wllm_kernels.compiler.prefill_shapes import PREFILL_SHAPES, PrefillShape
from wllm_kernels.device.arguments import is_aligned
from wllm_kernels.device.kernel import DeviceProperties, Kernel, backends
from wllm_kernels.errors import InvalidArgument, UnsupportedByGpu

_SHORT_ROW_LINES = 64  # of attention.cuh: rows of more lines are served here
_SMALL_LINES, _LARGE_LINES = 64, 128  # of attention_prefill_plan.cu
_LOG2_E = math.log2(math.e)
_ELEMENTS = {"f16": torch.float16, "bf16": torch.bfloat16}
# FORMAT_* of attention_prefill.cuh.
_FORMATS = {torch.float16: 0, torch.bfloat16: 0, torch.int8: 1, torch.float8_e4m3fn: 2}

_PLAN = Kernel("attention_prefill_plan", "attention_prefill_plan", "3Q2i", threads=256, shared_bytes=32)


def _kernel(shape: PrefillShape) -> tuple[PrefillShape, Kernel]:
    return shape, Kernel(shape.name, shape.name, "8Q11q8iI2f4x", shape.threads, shape.shared_bytes)


# By dtype and head_dim, those with the largest tiles first.
_KERNELS: dict[tuple[torch.dtype, int], list[tuple[PrefillShape, Kernel]]] = {}
for _shape in sorted(PREFILL_SHAPES, key=lambda shape: -shape.lines * shape.keys):
    _KERNELS.setdefault((_ELEMENTS[_shape.element], _shape.head_dim), []).append(_kernel(_shape))


def supports(dtype: torch.dtype, head_dim: int, block_size: int, capability: int) -> bool:
    """Whether there is a kernel for queries of this dtype on a GPU of this capability (times ten)."""
    if capability < 80 and dtype != torch.float16:
        return False
    return (dtype, head_dim) in _KERNELS and block_size % 16 == 0


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
    num_tokens, num_heads = q.shape[:2]
    num_kv_heads, block_size = kv.shape[2:4]
    group, rows = num_heads // num_kv_heads, seq_lens.shape[0]
    if num_tokens * group <= _SHORT_ROW_LINES or not rows:
        return
    if scale <= 0.0:
        raise InvalidArgument(f"scale is {scale}; device code takes a positive one")
    properties = backends[q.device].properties(q.device)
    if kv.dtype == torch.float8_e4m3fn and properties.capability < 89:
        raise UnsupportedByGpu(
            f"kv is {kv.dtype} and the GPU has compute capability {properties.capability / 10}; FP8 needs 8.9: use int8"
        )
    shape, kernel = _choose(q, num_tokens * group, num_kv_heads, rows, properties)
    q_strides, out_strides, kv_strides = _byte_strides(q, 2), _byte_strides(out, 2), _byte_strides(kv, 4)
    scale_strides = (0, 0, 0) if kv_scale is None else _byte_strides(kv_scale, 3)
    kv_scale_pointer = 0 if kv_scale is None else kv_scale.data_ptr()
    if not is_aligned(
        q.data_ptr(), kv.data_ptr(), out.data_ptr(), kv_scale_pointer, *q_strides, *out_strides, *kv_strides,
        *scale_strides,
    ):  # fmt: skip
        raise InvalidArgument(
            f"q, kv, kv_scale or out starts or strides at no multiple of 16 bytes (kv: {kv.stride()} elements); pass "
            "tensors whose vectors are aligned"
        )
    if softcap:
        cap_scale, score_scale = 2.0 * _LOG2_E * scale / softcap, softcap * _LOG2_E
    else:
        cap_scale, score_scale = 0.0, scale * _LOG2_E
    max_tiles = _max_tiles(num_tokens * group, rows, shape.lines)
    kernel.launch(
        q.device, (max_tiles * num_kv_heads, 1, 1), q.data_ptr(), kv.data_ptr(), kv_scale_pointer,
        block_table.data_ptr(), seq_lens.data_ptr(), cu_q.data_ptr(),
        tile_ends.data_ptr() + (4 * rows if shape.lines == _LARGE_LINES else 0), out.data_ptr(),
        *q_strides, *out_strides, *kv_strides, *scale_strides, rows, block_table.stride(0), num_kv_heads, group,
        block_size, causal, window, _FORMATS[kv.dtype], -(-(1 << 32) // block_size), score_scale, cap_scale,
    )  # fmt: skip


def _choose(
    q: Tensor, lines: int, num_kv_heads: int, rows: int, properties: DeviceProperties
) -> tuple[PrefillShape, Kernel]:
    candidates = _KERNELS[q.dtype, q.shape[2]]
    for shape, kernel in candidates:
        if not runs_on(shape.targets, properties.capability):
            continue
        # Two blocks on each multiprocessor hide each other's waiting; fewer large tiles than that leave places empty.
        places = 2 * properties.num_multiprocessors
        fills = _max_tiles(lines, rows, shape.lines) * num_kv_heads >= places
        if shape.lines == _LARGE_LINES and not (fills and 2 * shape.shared_bytes < properties.max_shared_bytes):
            continue
        if shape.shared_bytes <= properties.max_shared_bytes:
            return shape, kernel
    raise UnsupportedByGpu(
        f"head_dim is {q.shape[2]} and a block has at most {properties.max_shared_bytes} bytes of shared memory on "
        "this GPU, too few; use a model with smaller heads"
    )


def _max_tiles(lines: int, rows: int, tile_lines: int) -> int:
    """The most tiles that `lines` in up to `rows` long rows can have."""
    long_rows = min(rows, lines // (_SHORT_ROW_LINES + 1))
    return (lines + long_rows * (tile_lines - 1)) // tile_lines


def _byte_strides(tensor: Tensor, count: int) -> tuple[int, ...]:
    size = tensor.element_size()
    return tuple(stride * size for stride in tensor.stride()[:count])
