"""Launch of the RMS norm kernels."""

from __future__ import annotations

from torch import Tensor

from wllm_kernels.device.arguments import FLOAT_SUFFIXES, is_aligned, kernel_for, row_stride
from wllm_kernels.device.kernel import Kernel
from wllm_kernels.errors import InvalidArgument

_WARP = 32
_PIECES_PER_THREAD = 4  # NORM_PIECES of norm.cu
# Rows of so many 16-byte pieces have a warp each; a row of single elements has one up to so many elements.
_WARP_PIECES, _WARP_ELEMENTS = _WARP * _PIECES_PER_THREAD, 1024
# Pieces that a thread has on their way at once: with few rows, those of the residual included, short chains and more
# threads do better (measured with rows of 8 KiB on an H200).
_FEW_LOADS, _MANY_LOADS, _MANY_ROWS = 2, 4, 512
_THREADS = (128, 256, 512, 1024)

_KERNELS = {
    threads: {
        dtype: Kernel("norm", f"rms_norm_{suffix}", "4Q2q4i2f", threads, 4 * _WARP, overlaps=True)
        for dtype, suffix in FLOAT_SUFFIXES
    }
    for threads in _THREADS
}


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, weight_offset: float, out: Tensor) -> None:
    """The norm of `x`, or of `residual` after `x` is added to it in place, into `out`."""
    if not x.numel():
        return
    size = x.shape[-1]
    rows = x.numel() // size
    item = x.element_size()
    x_stride, x_at, weight_at, out_at = row_stride("x", x), x.data_ptr(), weight.data_ptr(), out.data_ptr()
    residual_stride, residual_at = 0, 0
    if residual is not None:
        residual_stride, residual_at = row_stride("residual", residual), residual.data_ptr()
        if residual_stride < size and rows > 1:
            raise InvalidArgument(f"residual has strides {residual.stride()}; pass rows that do not share memory")
    pieces = 0
    if is_aligned(x_at | weight_at | out_at | residual_at | (x_stride | residual_stride | size) * item):
        pieces = size * item // 16
    threads, row_threads, blocks = _shape(rows, size, pieces, 1 if residual is None else 2)
    if pieces > threads * _PIECES_PER_THREAD:
        pieces = 0
    kernel_for(_KERNELS[threads], "x", x).launch(
        x.device, (blocks, 1, 1), x_at, weight_at, residual_at, out_at, x_stride, residual_stride, rows, size, pieces,
        row_threads, eps, weight_offset,
    )  # fmt: skip


def _shape(rows: int, size: int, pieces: int, inputs: int) -> tuple[int, int, int]:
    """Threads of a block, threads of a row, blocks; of `inputs` each piece is loaded."""
    if 0 < pieces <= _WARP_PIECES or (not pieces and size <= _WARP_ELEMENTS):
        threads = _THREADS[0]
        return threads, _WARP, -(-rows * _WARP // threads)
    per_thread = (_MANY_LOADS if rows * inputs > _MANY_ROWS else _FEW_LOADS) // inputs
    for threads in _THREADS[:-1]:
        if 0 < pieces <= per_thread * threads:
            return threads, threads, rows
    return _THREADS[-1], _THREADS[-1], rows
