"""Launch of the gated activation kernels."""

from __future__ import annotations

from torch import Tensor

from wllm_kernels.device.arguments import FLOAT_SUFFIXES, is_aligned, kernel_for, row_stride
from wllm_kernels.device.kernel import Kernel

_THREADS = 128  # ACT_THREADS of activation.cu
KINDS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
_KERNELS = {
    dtype: Kernel("activation", f"act_mul_{suffix}", "2Qq4i", _THREADS, overlaps=True)
    for dtype, suffix in FLOAT_SUFFIXES
}


def act_mul(x: Tensor, kind: str, out: Tensor) -> None:
    """act(first half of `x`) * second half, into `out`."""
    if not out.numel():
        return
    rows, inter = out.shape
    item, stride, x_at, out_at = x.element_size(), row_stride("x", x), x.data_ptr(), out.data_ptr()
    vectorised = is_aligned(x_at | out_at | (stride | inter) * item)
    run = 16 // item if vectorised else 1
    blocks_per_row = -(-inter // (_THREADS * run))
    kernel_for(_KERNELS, "x", x).launch(
        x.device, (rows * blocks_per_row, 1, 1), x_at, out_at, stride, inter, blocks_per_row, KINDS[kind], vectorised
    )
