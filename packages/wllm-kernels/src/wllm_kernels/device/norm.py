"""Launch of the RMS norm kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from wllm_kernels.device.kernel import Kernel

_KERNELS = {
    dtype: Kernel("norm", f"rms_norm_{suffix}", "4Q2qi2f4x", threads=256, shared_bytes=32)
    for dtype, suffix in ((torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16"))
}


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None, weight_offset: float, out: Tensor) -> None:
    """The norm of `x`, or of `residual` after `x` is added to it in place, into `out`."""
    size = x.shape[-1]
    rows = x.numel() // size
    if rows:
        _KERNELS[x.dtype].launch(
            x.device, (rows, 1, 1), x.data_ptr(), weight.data_ptr(), 0 if residual is None else residual.data_ptr(),
            out.data_ptr(), x.stride(-2), 0 if residual is None else residual.stride(-2), size, eps, weight_offset,
        )  # fmt: skip
