"""The norm and activation kernels in the emulator against the reference."""

from __future__ import annotations

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, reference
from wllm_kernels.device import activation, norm

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def ulp(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps


def assert_rounded_alike(out: Tensor, expected: Tensor) -> None:
    """Of many elements of 16 bits nearly all have the reference's bits: each step is rounded where it rounds."""
    if out.dtype != torch.float32 and out.numel() > 1000:
        assert (out == expected).float().mean() > 0.9


def check_norm(emulator: Emulator, x: Tensor, residual: Tensor | None, offset: float) -> None:
    weight = emulator.guard(torch.randn(x.shape[-1]).to(x.dtype))
    out = emulator.guard(torch.full(x.shape, torch.nan, dtype=x.dtype))
    expected, total = torch.empty_like(out), None if residual is None else residual.clone()
    norm.rms_norm(x, weight, 1e-5, residual, offset, out)
    reference.rms_norm(x, weight, 1e-5, total, offset, expected)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=ulp(x.dtype))
    assert_rounded_alike(out, expected)
    if residual is not None:
        assert torch.equal(residual, total)


# One element to a thread (5, 1029), a warp to a row (64, 1024), a block to a row of one, two and four pieces a thread.
@pytest.mark.parametrize("size", [5, 64, 1024, 1029, 1096])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("with_residual", "offset"), [(False, 0.0), (True, 0.0), (True, 1.0)])
def test_rms_norm(emulator: Emulator, dtype: torch.dtype, size: int, with_residual: bool, offset: float) -> None:
    x = emulator.guard(torch.randn(5, size).to(dtype))
    residual = emulator.guard(torch.randn(5, size).to(dtype)) if with_residual else None
    check_norm(emulator, x, residual, offset)


# 512 threads of two pieces; 1,024 threads with up to four pieces; more than those hold, so one element after the other.
@pytest.mark.parametrize("size", [8192, 20480, 32776])
def test_long_rows(emulator: Emulator, size: int) -> None:
    check_norm(emulator, emulator.guard(torch.randn(1, size).bfloat16()), None, 0.0)


# Many rows: 128 threads with three pieces each, and 512 with up to four.
@pytest.mark.parametrize(("rows", "size"), [(128, 2056), (129, 8200)])
def test_many_rows(emulator: Emulator, rows: int, size: int) -> None:
    check_norm(emulator, emulator.guard(torch.randn(rows, size).bfloat16()), None, 0.0)


@pytest.mark.parametrize("first", [0, 3])
def test_rows_of_a_wider_tensor(emulator: Emulator, first: int) -> None:
    wide, other = torch.full((2, 3, 96), torch.nan), torch.full((2, 3, 80), torch.nan)
    x, residual = wide[..., first : first + 64], other[..., first : first + 64]
    x.normal_(), residual.normal_()
    check_norm(emulator, x, residual, 0.0)
    assert other.isnan().sum() == 2 * 3 * 16


def test_rows_at_uneven_distances(emulator: Emulator) -> None:
    x = torch.randn(3, 4, 8)[:, :2]
    with pytest.raises(InvalidArgument, match=r"x has strides \(32, 8, 1\); pass a tensor of dense rows"):
        norm.rms_norm(x, torch.ones(8), 1e-5, None, 0.0, torch.empty(3, 2, 8))


def test_residuals_in_shared_memory(emulator: Emulator) -> None:
    x = torch.randn(3, 8)
    with pytest.raises(InvalidArgument, match=r"residual has strides \(0, 1\); pass rows that do not share memory"):
        norm.rms_norm(x, torch.ones(8), 1e-5, torch.zeros(1, 8).expand(3, 8), 0.0, torch.empty(3, 8))


def test_float64_has_no_kernel(emulator: Emulator) -> None:
    x = torch.randn(3, 8, dtype=torch.float64)
    with pytest.raises(InvalidArgument, match=r"x has dtype torch\.float64; device code takes torch\.float32, "):
        norm.rms_norm(x, x[0], 1e-5, None, 0.0, x)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inter", [7, 24, 2072])
def test_act_mul(emulator: Emulator, dtype: torch.dtype, inter: int, kind: str) -> None:
    x = emulator.guard((3 * torch.randn(2, 2 * inter)).to(dtype))
    out, expected = emulator.guard(torch.full((2, inter), torch.nan, dtype=dtype)), torch.empty(2, inter, dtype=dtype)
    activation.act_mul(x, kind, out)
    reference.act_mul(x, kind, expected)
    # The activation may be rounded the other way, and then the product; far below zero a GELU cancels.
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=2 * ulp(dtype))
    assert_rounded_alike(out, expected)


def test_act_mul_of_a_wider_tensor(emulator: Emulator) -> None:
    wide = torch.full((3, 56), torch.nan).bfloat16()
    x = wide[:, 8:40]
    x.normal_()
    out, expected = torch.empty(3, 16).bfloat16(), torch.empty(3, 16).bfloat16()
    activation.act_mul(x, "silu", out)
    reference.act_mul(x, "silu", expected)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=2 * ulp(x.dtype))


@pytest.mark.parametrize("value", [-200.0, 200.0])
def test_large_gates_do_not_overflow(emulator: Emulator, value: float) -> None:
    x, out = torch.tensor([[value, 2.0]]), torch.empty(1, 1)
    for kind in ("silu", "gelu", "gelu_tanh"):
        activation.act_mul(x, kind, out)
        assert out.item() == max(value, 0.0) * 2
