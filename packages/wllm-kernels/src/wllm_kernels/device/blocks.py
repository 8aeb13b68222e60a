"""Launch of the kernels that copy whole blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from wllm_kernels.device.arguments import is_aligned
from wllm_kernels.device.kernel import Kernel

_THREADS, _BATCH = 256, 4  # COPY_THREADS and COPY_BATCH of blocks.cu
_SET_BYTES = 65536 // 8  # SET_BITS
_PIECES, _BYTES = (
    Kernel("blocks", name, "4Q3q4i", _THREADS, shared_bytes=2 * _SET_BYTES)
    for name in ("copy_blocks", "copy_blocks_bytes")
)


def copy_blocks(kv: Tensor, pairs: Tensor) -> None:
    """Copy whole blocks; every source is read before any target is written.

    More pairs than a thread can hold need a temporary tensor of as many blocks.
    """
    if pairs.shape[0] <= _BATCH:
        _copy(kv, kv, pairs, source_column=0)
    else:
        scratch = torch.empty((pairs.shape[0], *kv.shape[1:]), dtype=kv.dtype, device=kv.device)
        _copy(kv, kv, pairs, source_column=0, scratch=scratch)


def swap_blocks(kv: Tensor, host: Tensor, pairs: Tensor, to_host: bool) -> None:
    """Copy blocks of `kv` to those of `host`, which is pinned, or back."""
    if to_host:
        _copy(kv, host, pairs, source_column=0)
    else:
        _copy(host, kv, pairs, source_column=1)


def _copy(source: Tensor, target: Tensor, pairs: Tensor, *, source_column: int, scratch: Tensor | None = None) -> None:
    num_pairs, item = pairs.shape[0], source.element_size()
    block_bytes = source.shape[1:].numel() * item
    if not num_pairs or not block_bytes:
        return
    source_at, source_stride = source.data_ptr(), source.stride(0) * item
    target_at, target_stride = target.data_ptr(), target.stride(0) * item
    scratch_at = 0 if scratch is None else scratch.data_ptr()
    aligned = is_aligned(source_at, target_at, scratch_at, source_stride, target_stride, block_bytes)
    pieces = block_bytes // 16 if aligned else block_bytes
    parts = -(-pieces // _THREADS)
    batches = -(-num_pairs // _BATCH) + (scratch is not None)
    (_PIECES if aligned else _BYTES).launch(
        pairs.device, (parts * batches, 1, 1), source_at, target_at, scratch_at, pairs.data_ptr(), source_stride,
        target_stride, block_bytes, num_pairs, pieces, parts, source_column,
    )  # fmt: skip
