"""Launch of the kernels that copy whole blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from wllm_kernels.device.arguments import is_aligned
from wllm_kernels.device.kernel import Kernel

_THREADS, _BATCH = 256, 8  # COPY_THREADS and COPY_BATCH of blocks.cu
_PIECES, _BYTES = (Kernel("blocks", name, "3Q2q5i4x", _THREADS) for name in ("copy_blocks", "copy_blocks_bytes"))
# Instead of a column of `pairs`: block i belongs to pair i.
_IN_ORDER = -1


def copy_blocks(kv: Tensor, pairs: Tensor) -> None:
    """Copy whole blocks; every source is read before any target is written.

    A batch of pairs reads all its sources first by itself. More pairs take the way over a temporary tensor.
    """
    num_pairs = pairs.shape[0]
    if num_pairs <= _BATCH:
        _copy(kv, 0, kv, 1, pairs)
    else:
        held = torch.empty((num_pairs, *kv.shape[1:]), dtype=kv.dtype, device=kv.device)
        _copy(kv, 0, held, _IN_ORDER, pairs)
        _copy(held, _IN_ORDER, kv, 1, pairs)


def swap_blocks(kv: Tensor, host: Tensor, pairs: Tensor, to_host: bool) -> None:
    """Copy blocks of `kv` to those of `host`, which is pinned, or back."""
    if to_host:
        _copy(kv, 0, host, 1, pairs)
    else:
        _copy(host, 1, kv, 0, pairs)


def _copy(source: Tensor, source_column: int, target: Tensor, target_column: int, pairs: Tensor) -> None:
    num_pairs, item = pairs.shape[0], source.element_size()
    block_bytes = source.shape[1:].numel() * item
    if not num_pairs or not block_bytes:
        return
    source_at, source_stride = source.data_ptr(), source.stride(0) * item
    target_at, target_stride = target.data_ptr(), target.stride(0) * item
    aligned = is_aligned(source_at, target_at, source_stride, target_stride, block_bytes)
    pieces = block_bytes // 16 if aligned else block_bytes
    parts = -(-pieces // _THREADS)
    (_PIECES if aligned else _BYTES).launch(
        pairs.device, (parts * -(-num_pairs // _BATCH), 1, 1), source_at, target_at, pairs.data_ptr(), source_stride,
        target_stride, num_pairs, pieces, parts, source_column, target_column,
    )  # fmt: skip
