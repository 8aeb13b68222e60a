"""The norm kernels in the emulator against the reference."""

from __future__ import annotations

import pytest
import torch
from emulator.backend import Emulator

from wllm_kernels import reference
from wllm_kernels.device import norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [5, 64, 576])
@pytest.mark.parametrize(("with_residual", "offset"), [(False, 0.0), (True, 1.0)])
def test_rms_norm(emulator: Emulator, dtype: torch.dtype, size: int, with_residual: bool, offset: float) -> None:
    x, weight = (emulator.guard(torch.randn(shape).to(dtype)) for shape in ((3, size), (size,)))
    residual = emulator.guard(torch.randn(3, size).to(dtype)) if with_residual else None
    out, expected = emulator.guard(torch.full_like(x, torch.nan)), torch.empty_like(x)
    total = None if residual is None else residual.clone()
    norm.rms_norm(x, weight, 1e-5, residual, offset, out)
    reference.rms_norm(x, weight, 1e-5, total, offset, expected)
    if residual is not None:
        assert torch.equal(residual, total)
    tolerance = 1e-5 if dtype == torch.float32 else 2 ** (-8 if dtype == torch.bfloat16 else -10)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=tolerance)
