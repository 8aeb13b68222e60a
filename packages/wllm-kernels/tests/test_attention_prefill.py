"""Prefill attention in the emulator against the reference: rows of few lines stay as they are."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, reference
from wllm_kernels.compiler.prefill_shapes import HEAD_DIMS
from wllm_kernels.device import attention_prefill
from wllm_kernels.device.kernel import DeviceProperties, Kernel

UNTOUCHED = 99.0


@dataclass
class Step:
    """The arguments of attention, in guarded memory; cells that no row owns are NaN, their scales too."""

    q: Tensor
    kv: Tensor
    block_table: Tensor
    seq_lens: Tensor
    cu_q: Tensor
    kv_scale: Tensor | None

    def run(self, causal: bool = True, window: int = 0, softcap: float = 0.0, scale: float = 0.1) -> Tensor:
        group = self.q.shape[1] // self.kv.shape[2]
        tile_ends = attention_prefill.plan_tensors(self.seq_lens, self.cu_q, group)
        out = torch.full_like(self.q, UNTOUCHED)
        attention_prefill.launch(
            self.q, self.kv, self.block_table, self.seq_lens, self.cu_q, scale, causal, window, softcap,
            self.kv_scale, tile_ends, out,
        )  # fmt: skip
        return out

    def expected(self, causal: bool = True, window: int = 0, softcap: float = 0.0, scale: float = 0.1) -> Tensor:
        kv = self.kv if self.kv.dtype == torch.int8 else self.kv.float()
        out = torch.empty(self.q.shape)
        reference.paged_attention(
            self.q.float(), kv, self.block_table, self.seq_lens, self.cu_q, scale, causal, window, softcap,
            self.kv_scale, (), (), None, out,
        )  # fmt: skip
        counts = self.cu_q.diff()
        is_long = (counts * (self.q.shape[1] // self.kv.shape[2]) > 64) & (self.seq_lens > 0)
        served = torch.repeat_interleave(is_long, counts.long())
        out[: len(served)][~served] = UNTOUCHED
        out[len(served) :] = UNTOUCHED
        return out


def make_step(
    emulator: Emulator,
    lengths: list[int],
    counts: list[int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    cache: torch.dtype | None = None,
    group: int = 2,
    num_kv_heads: int = 1,
    head_dim: int = 64,
    block_size: int = 16,
    extra_tokens: int = 0,
) -> Step:
    blocks = [-(-length // block_size) for length in lengths]
    num_blocks = sum(blocks) + 2
    ids = torch.randperm(num_blocks).int().tolist()
    shape = (num_blocks, 2, num_kv_heads, block_size, head_dim)
    owned = torch.zeros(num_blocks, 1, 1, block_size, 1, dtype=torch.bool)
    block_table = torch.full((len(lengths), max(blocks) + 1), -7, dtype=torch.int32)
    for row, length in enumerate(lengths):
        for index in range(blocks[row]):
            block_table[row, index] = block = ids.pop()
            owned[block, :, :, : length - index * block_size] = True
    kv_scale = None
    if cache == torch.int8:
        kv = torch.randint(-127, 128, shape, dtype=torch.int8)
        kv_scale = torch.rand(shape[:4]).half() / 64
        kv_scale = emulator.guard(kv_scale.masked_fill(~owned.expand(shape)[..., 0], torch.nan))
    else:
        kv = torch.randn(shape).masked_fill(~owned, torch.nan).to(cache or dtype)
    cu_q = torch.tensor([0, *counts]).cumsum(0).int()
    q = torch.randn(int(cu_q[-1]) + extra_tokens, group * num_kv_heads, head_dim).to(dtype)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    q, kv, block_table, seq_lens, cu_q = map(emulator.guard, (q, kv, block_table, seq_lens, cu_q))
    return Step(q, kv, block_table, seq_lens, cu_q, kv_scale)


def assert_close(out: Tensor, expected: Tensor) -> None:
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[out.dtype]
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.fixture
def large_tiles(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """A GPU that few large tiles fill."""
    monkeypatch.setattr(emulator, "properties", lambda device: DeviceProperties(90, 1, 227 * 1024))
    return emulator


def launched() -> set[str]:
    return {kernel.name for kernel in Kernel.all if kernel.launches and kernel.name.startswith("attention_prefill_m")}


@pytest.fixture(autouse=True)
def _no_launches() -> None:
    for kernel in Kernel.all:
        kernel.launches = 0


@pytest.mark.parametrize("seed", range(8))
def test_random_steps(emulator: Emulator, seed: int) -> None:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    emulator.seed = seed
    counts = [choose.choice([1, 20, 33, 70]) for _ in range(choose.randint(1, 4))]
    step = make_step(
        emulator,
        [count + choose.choice([0, 1, 15, 40, 130]) for count in counts],
        counts,
        group=choose.choice([1, 2, 4, 7]),
        num_kv_heads=choose.choice([1, 2]),
        block_size=choose.choice([16, 32, 48]),
        extra_tokens=choose.choice([0, 2]),
    )
    window, softcap = choose.choice([0, 0, 1, 17, 90]), choose.choice([0.0, 5.0])
    causal = window > 0 or choose.random() < 0.8
    assert_close(step.run(causal, window, softcap), step.expected(causal, window, softcap))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_sizes(emulator: Emulator, head_dim: int) -> None:
    step = make_step(emulator, [90], [40], head_dim=head_dim)
    assert_close(step.run(), step.expected())
    assert launched() == {f"attention_prefill_m64_bf16_d{head_dim}"}


@pytest.mark.parametrize("head_dim", HEAD_DIMS[:-1])
def test_large_tiles(large_tiles: Emulator, head_dim: int) -> None:
    step = make_step(large_tiles, [150, 40, 200], [70, 2, 90], head_dim=head_dim)
    assert_close(step.run(window=100), step.expected(window=100))
    assert launched() == {f"attention_prefill_m128_bf16_d{head_dim}"}
