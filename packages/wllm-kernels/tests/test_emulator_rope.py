"""The rope kernels in the emulator against the reference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, reference
from wllm_kernels.device import rope

BLOCK = 4
CELLS = [9, 2, -1, 22, 0]


@dataclass
class Case:
    """Arguments of the op; the cache and the result are NaN, or a conspicuous byte, where nothing is written."""

    emulator: Emulator
    dtype: torch.dtype = torch.float32
    cache: torch.dtype | None = None
    head_dim: int = 64
    rotary_dim: int = 64
    heads: tuple[int, int] = (6, 2)
    interleaved: bool = False
    norms: str = ""
    wide_angles: bool = True
    scale: float = 1.0

    def check(self) -> None:
        num_heads, num_kv_heads = self.heads
        qkv = self._input(len(CELLS), (num_heads + 2 * num_kv_heads) * self.head_dim) * self.scale
        angles = torch.arange(20.0)[:, None] * torch.rand(self.rotary_dim // 2)
        cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
        if not self.wide_angles:
            cos_sin = cos_sin.to(self.dtype)
        norms = [self._input(self.head_dim) if name in self.norms else None for name in "qk"]
        results = []
        for run in (rope.rope_kv_write, reference.rope_kv_write):
            kv, kv_scale = self._cache(num_kv_heads)
            out = self.emulator.guard(torch.full((len(CELLS), num_heads, self.head_dim), torch.nan, dtype=self.dtype))
            run(
                self.emulator.guard(qkv), torch.tensor([7, 0, 3, 19, 4]), self.emulator.guard(cos_sin), kv,
                torch.tensor(CELLS), num_heads, num_kv_heads, *norms, 1e-6, self.interleaved, kv_scale, (), out,
            )  # fmt: skip
            results.append((out, kv, kv_scale))
        (out, kv, kv_scale), (want_out, want_kv, want_scale) = results
        self._compare(out, want_out)
        if kv_scale is not None and want_scale is not None:
            exact = self.dtype != torch.float32
            torch.testing.assert_close(kv_scale, want_scale, equal_nan=True, rtol=0 if exact else 1e-3, atol=0)
            assert int((kv.int() - want_kv.int()).abs().max()) <= (0 if exact else 1)
        else:
            self._compare(kv, want_kv)

    def _input(self, *shape: int) -> Tensor:
        return self.emulator.guard(torch.randn(shape).to(self.dtype))

    def _cache(self, num_kv_heads: int) -> tuple[Tensor, Tensor | None]:
        shape = (6, 2, num_kv_heads, BLOCK, self.head_dim)
        if self.cache == torch.int8:
            kv = self.emulator.guard(torch.full(shape, 77, dtype=torch.int8))
            return kv, self.emulator.guard(torch.full(shape[:4], torch.nan, dtype=torch.float16))
        return self.emulator.guard(torch.full(shape, torch.nan).to(self.cache or self.dtype)), None

    def _compare(self, have: Tensor, want: Tensor) -> None:
        """Equal but for the rounding of an FP8 number, of float32, or of a norm."""
        rounding = {torch.float32: 1e-5, torch.float8_e4m3fn: 0.07}.get(have.dtype, 0.0)
        if self.norms and have.dtype in (torch.float16, torch.bfloat16):
            rounding = 2 * torch.finfo(have.dtype).eps
        torch.testing.assert_close(have.float(), want.float(), equal_nan=True, rtol=rounding, atol=rounding)


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("norms", ["", "q", "qk"])
def test_heads_in_runs(emulator: Emulator, dtype: torch.dtype, interleaved: bool, norms: str) -> None:
    Case(emulator, dtype, interleaved=interleaved, norms=norms).check()


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 6), (10, 10), (80, 20), (264, 66)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_heads_in_elements(
    emulator: Emulator, dtype: torch.dtype, interleaved: bool, head_dim: int, rotary_dim: int
) -> None:
    Case(emulator, dtype, None, head_dim, rotary_dim, (2, 1), interleaved, "k").check()


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(80, 80), (96, 32), (128, 128), (256, 64)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_head_dims(emulator: Emulator, interleaved: bool, head_dim: int, rotary_dim: int) -> None:
    Case(emulator, torch.bfloat16, None, head_dim, rotary_dim, (3, 1), interleaved, "qk").check()


@pytest.mark.parametrize("heads", [(1, 1), (8, 8), (7, 1)])
def test_head_counts(emulator: Emulator, heads: tuple[int, int]) -> None:
    Case(emulator, torch.bfloat16, heads=heads).check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", [None, torch.int8])
@pytest.mark.parametrize("heads", [(1, 1), (6, 3)])
@pytest.mark.parametrize("norms", ["", "qk"])
def test_teams_of_two_heads(
    emulator: Emulator,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    cache: torch.dtype | None,
    heads: tuple[int, int],
    norms: str,
) -> None:
    # As in a step of many tokens; the last team of a token has one head if there are (1 + 2 * 1) of them.
    monkeypatch.setattr(rope, "_MANY_LANES", 0)
    Case(emulator, dtype, cache, heads=heads, norms=norms).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_angles_of_the_models_dtype(emulator: Emulator, dtype: torch.dtype) -> None:
    Case(emulator, dtype, wide_angles=False).check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("head_dim", [64, 10])
@pytest.mark.parametrize("scale", [1.0, 300.0, 1e-7])
def test_quantised_caches(
    emulator: Emulator, dtype: torch.dtype, cache: torch.dtype, head_dim: int, scale: float
) -> None:
    Case(emulator, dtype, cache, head_dim, head_dim, scale=scale).check()


def write(kv: Tensor, qkv: Tensor, kv_scale: Tensor | None = None) -> Tensor:
    """One token of one head into cell 0, not turned."""
    out = torch.empty(1, 1, kv.shape[4], dtype=qkv.dtype)
    cos_sin = torch.tensor([[1.0] * (kv.shape[4] // 2) + [0.0] * (kv.shape[4] // 2)])
    zero = torch.zeros(1, dtype=torch.int64)
    rope.rope_kv_write(qkv, zero, cos_sin, kv, zero, 1, 1, None, None, 1e-6, False, kv_scale, (), out)
    return out


def test_heads_of_zeros_stay_zero(emulator: Emulator) -> None:
    weight, zero = torch.ones(64), torch.zeros(1, dtype=torch.int64)
    kv, out = torch.full((1, 2, 1, 4, 64), torch.nan), torch.full((1, 1, 64), torch.nan)
    arguments = torch.zeros(1, 3 * 64), zero, torch.ones(1, 64), kv, zero, 1, 1, weight, weight
    rope.rope_kv_write(*arguments, 1e-6, False, None, (), out)
    assert not out.any() and not kv[0, :, 0, 0].any()


def test_nan_shows_in_the_scale_of_an_int8_cache(emulator: Emulator) -> None:
    qkv = torch.randn(1, 3 * 64)
    qkv[0, 70] = torch.nan
    scale = torch.zeros(1, 2, 1, 4, dtype=torch.float16)
    write(torch.zeros(1, 2, 1, 4, 64, dtype=torch.int8), qkv, scale)
    assert bool(scale[0, 0, 0, 0].isnan()) and bool(scale[0, 1, 0, 0] > 0)


def test_strided_cache(emulator: Emulator) -> None:
    layers = torch.full((2, 3, 2, 1, 4, 64), torch.nan)
    qkv = torch.randn(1, 3 * 64)
    write(layers[:, 1], qkv)
    assert torch.equal(layers[0, 1, :, 0, 0], qkv.view(3, 64)[1:]) and int((~layers.isnan()).sum()) == 128


@pytest.mark.parametrize(
    ("kv", "qkv", "message"),
    [
        (torch.zeros(1, 2, 1, 4, 8, dtype=torch.float16), torch.zeros(1, 24), r"kv has dtype torch\.float16 and qkv"),
        (torch.zeros(1, 2, 1, 4, 9), torch.zeros(1, 27), "head_dim is 9; device code takes even ones up to 512"),
    ],
)
def test_refused(emulator: Emulator, kv: Tensor, qkv: Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        write(kv, qkv)
