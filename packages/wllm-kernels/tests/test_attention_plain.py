"""Attention without tensor cores, in the emulator, against the reference."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, reference
from wllm_kernels.device import attention_plain


@dataclass
class Step:
    """The arguments of attention, in guarded memory; cells that no row owns are NaN, their scales too."""

    q: Tensor
    kv: Tensor
    block_table: Tensor
    seq_lens: Tensor
    cu_q: Tensor
    kv_scale: Tensor | None

    def run(self, causal: bool = True, window: int = 0, softcap: float = 0.0) -> Tensor:
        out = torch.full_like(self.q, torch.nan)
        attention_plain.launch(
            self.q, self.kv, self.block_table, self.seq_lens, self.cu_q, 0.2, causal, window, softcap,
            self.kv_scale, out,
        )  # fmt: skip
        return out

    def expected(self, causal: bool = True, window: int = 0, softcap: float = 0.0) -> Tensor:
        kv = self.kv.float() if self.kv.dtype == torch.float8_e4m3fn else self.kv
        out = torch.empty(self.q.shape)
        reference.paged_attention(
            self.q.float(), kv, self.block_table, self.seq_lens, self.cu_q, 0.2, causal, window, softcap,
            self.kv_scale, (), (), None, out,
        )  # fmt: skip
        return out


def make_step(
    emulator: Emulator,
    lengths: list[int],
    counts: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    cache: torch.dtype | None = None,
    group: int = 3,
    num_kv_heads: int = 2,
    head_dim: int = 16,
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


def assert_close(step: Step, out: Tensor, expected: Tensor) -> None:
    rounding = {torch.float32: 1e-5, torch.float16: 2**-10, torch.bfloat16: 2**-7}[step.q.dtype]
    torch.testing.assert_close(out.float(), expected, atol=rounding, rtol=rounding)


@pytest.mark.parametrize("seed", range(12))
def test_random_steps(emulator: Emulator, seed: int) -> None:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    emulator.seed = seed
    counts = [choose.choice([1, 1, 3, 9]) for _ in range(choose.randint(1, 4))]
    step = make_step(
        emulator,
        [count + choose.choice([0, 1, 15, 40, 70]) for count in counts],
        counts,
        group=choose.choice([1, 2, 4, 7, 8]),
        num_kv_heads=choose.choice([1, 2]),
        head_dim=choose.choice([5, 48, 64, 80]),
        block_size=choose.choice([4, 16, 32]),
        extra_tokens=choose.choice([0, 2]),
    )
    window, softcap = choose.choice([0, 0, 1, 7, 33]), choose.choice([0.0, 5.0])
    causal = window > 0 or choose.random() < 0.8
    assert_close(step, step.run(causal, window, softcap), step.expected(causal, window, softcap))


@pytest.mark.parametrize("head_dim", [1, 31, 32, 33, 96, 128, 256])
def test_head_sizes(emulator: Emulator, head_dim: int) -> None:
    step = make_step(emulator, [37, 3], [1, 3], head_dim=head_dim, group=2)
    assert_close(step, step.run(), step.expected())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cache", [None, torch.int8, torch.float8_e4m3fn])
def test_dtypes(emulator: Emulator, dtype: torch.dtype, cache: torch.dtype | None) -> None:
    step = make_step(emulator, [33, 9], [1, 2], dtype=dtype, cache=cache, head_dim=40)
    assert_close(step, step.run(), step.expected())


def test_padding_rows_and_tokens_of_no_row(emulator: Emulator) -> None:
    step = make_step(emulator, [20, 6], [2, 3], extra_tokens=2)
    step.seq_lens[1] = 0
    out = step.run()
    assert out[:2].isfinite().all() and out[:2].abs().sum() > 0
    assert torch.equal(out[2:], torch.zeros_like(out[2:]))


def test_strides(emulator: Emulator) -> None:
    step = make_step(emulator, [20, 6], [2, 3])
    expected = step.run()
    step.q = torch.randn(5, 3, 6, 16)[:, 1].copy_(step.q)
    step.kv = step.kv.permute(0, 3, 1, 2, 4).contiguous().permute(0, 2, 3, 1, 4)
    step.block_table = torch.full((2, 9), -7, dtype=torch.int32)[:, : step.block_table.shape[1]].copy_(step.block_table)
    assert torch.equal(step.run(), expected)


def test_lengths_beyond_the_table_read_nothing_else(emulator: Emulator) -> None:
    step = make_step(emulator, [64], [2])
    step.block_table = emulator.guard(step.block_table[:, :4])
    clipped = step.run()
    step.seq_lens += 1000
    assert torch.equal(step.run(), clipped)


def test_large_scores_do_not_overflow(emulator: Emulator) -> None:
    step = make_step(emulator, [50], [2])
    step.q *= 1000
    assert_close(step, step.run(), step.expected())


@pytest.mark.parametrize("what", ["query", "key", "value"])
def test_what_is_no_number_does_not_look_healthy(emulator: Emulator, what: str) -> None:
    step = make_step(emulator, [20, 6], [1, 1])
    if what == "query":
        step.q[0] = torch.nan
    else:
        step.kv[step.block_table[0, 0], int(what == "value"), :, 3] = torch.nan
    out = step.run()
    assert out[0].isnan().all() and out[1].isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(5, 6, 300)}, "head_dim is 300"),
        ({"q": torch.zeros(5, 6, 16, dtype=torch.float16)}, "q is torch.float16, kv torch.float32"),
        ({"q": torch.zeros(5, 16, 6).transpose(1, 2)}, "q has strides"),
        ({"kv_scale": torch.zeros(4, 2, 2, 16)}, "kv_scale is torch.float32"),
    ],
)
def test_refusals(emulator: Emulator, change: dict[str, Tensor], message: str) -> None:
    step = make_step(emulator, [20, 6], [2, 3])
    for name, tensor in change.items():
        setattr(step, name, tensor)
    with pytest.raises(InvalidArgument, match=message):
        step.run()
