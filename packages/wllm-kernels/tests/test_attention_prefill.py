"""Prefill attention in the emulator against the reference: rows of few lines stay as they are."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, KernelError, reference
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


def forget_tokens(step: Step, row: int, end: int) -> None:
    """What a window has left behind: the first `end` cells of a row are NaN, and whole blocks of them are gone."""
    block_size = step.kv.shape[3]
    for cell in range(end):
        step.kv[step.block_table[row, cell // block_size], :, :, cell % block_size] = torch.nan
    step.block_table[row, : end // block_size] = -7


def assert_close(out: Tensor, expected: Tensor) -> None:
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[out.dtype]
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.fixture
def large_tiles(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """A GPU that few large tiles fill."""
    monkeypatch.setattr(emulator, "properties", lambda device: DeviceProperties(90, 1, 227 * 1024))
    return emulator


@pytest.fixture(autouse=True)
def _no_launches() -> None:
    for kernel in Kernel.all:
        kernel.launches = 0


def launched() -> set[str]:
    """The tiles, element types and head sizes that ran."""
    prefix = "attention_prefill_m"
    return {kernel.name.removeprefix(prefix) for kernel in Kernel.all if kernel.launches and prefix in kernel.name}


def test_plan(emulator: Emulator) -> None:
    counts = torch.tensor([1, 33, 0, 64, 32, 500, 40] * 50)
    seq_lens = torch.where(torch.arange(350) % 7 == 6, 0, counts + 5).int()
    cu_q = torch.cat([torch.zeros(1), counts.cumsum(0)]).int()
    tile_ends = torch.full((2, 350), -1, dtype=torch.int32)
    made = attention_prefill.plan_tensors(*map(emulator.guard, (seq_lens, cu_q)), 2, emulator.guard(tile_ends))
    tiles = torch.tensor([[0, 2, 0, 2, 0, 16, 0], [0, 1, 0, 1, 0, 8, 0]])
    assert torch.equal(made, tiles.repeat(1, 50).cumsum(1).int())


@pytest.mark.parametrize("tiles", ["small", "large"])
@pytest.mark.parametrize("seed", range(8))
def test_random_steps(request: pytest.FixtureRequest, tiles: str, seed: int) -> None:
    emulator = request.getfixturevalue("emulator" if tiles == "small" else "large_tiles")
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


@pytest.mark.parametrize("group", [1, 3, 7, 16])
def test_rows_of_more_than_one_tile(emulator: Emulator, group: int) -> None:
    step = make_step(emulator, [200, 3, 170], [150, 2, 70], group=group)
    step.q *= 10  # large scores, so that maxima rise and weights are 0 where they should
    assert_close(step.run(), step.expected())


@pytest.mark.parametrize("window", [1, 20, 64])
def test_tokens_that_a_window_has_left_behind(emulator: Emulator, window: int) -> None:
    step = make_step(emulator, [190, 5], [66, 1], block_size=32)
    expected = step.expected(window=window)
    forget_tokens(step, 0, 190 - 66 + 1 - window)
    assert_close(step.run(window=window), expected)


def test_scores_that_rise_along_the_row(emulator: Emulator) -> None:
    step = make_step(emulator, [300], [40], dtype=torch.float16)
    # One line sees its largest score in the last tile of keys, the others have theirs in the first.
    step.q[:] = torch.randn_like(step.q) / 8
    step.q[17, 1] = step.kv[step.block_table[0, 17], 0, 0, 5] * 4
    assert_close(step.run(scale=1.0), step.expected(scale=1.0))


@pytest.mark.parametrize("line", [3, 12])  # of either half of a fragment
def test_one_line_of_a_warp_rises(emulator: Emulator, line: int) -> None:
    # By so much that its weights overflow f16 unless its maximum follows.
    step = make_step(emulator, [200], [66], group=1, dtype=torch.float16)
    step.q[:] = 0
    step.q[line] = 1
    for cell in range(200):
        step.kv[step.block_table[0, cell // 16], 0, :, cell % 16] = cell / 320
    assert_close(step.run(scale=1.0), step.expected(scale=1.0))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("cache", [None, torch.int8])
def test_head_sizes(emulator: Emulator, head_dim: int, cache: torch.dtype | None) -> None:
    step = make_step(emulator, [90, 77], [40, 33], head_dim=head_dim, cache=cache)
    assert_close(step.run(), step.expected())
    assert launched() == {f"64_bf16_d{head_dim}"}


@pytest.mark.parametrize("head_dim", HEAD_DIMS[:-1])
def test_large_tiles(large_tiles: Emulator, head_dim: int) -> None:
    step = make_step(large_tiles, [150, 40, 200], [70, 2, 90], head_dim=head_dim)
    assert_close(step.run(window=100), step.expected(window=100))
    assert launched() == {f"128_bf16_d{head_dim}"}


def test_few_tokens_take_small_tiles(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "properties", lambda device: DeviceProperties(90, 4, 227 * 1024))
    step = make_step(emulator, [90], [40])
    step.run()
    assert launched() == {"64_bf16_d64"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cache", [None, torch.int8, torch.float8_e4m3fn])
def test_dtypes(emulator: Emulator, dtype: torch.dtype, cache: torch.dtype | None) -> None:
    step = make_step(emulator, [83, 70], [70, 33], dtype=dtype, cache=cache, num_kv_heads=2, block_size=32)
    assert_close(step.run(), step.expected())


@pytest.mark.parametrize("head_dim", [64, 256])
def test_turing(turing: Emulator, head_dim: int) -> None:
    step = make_step(turing, [150], [70], dtype=torch.float16, head_dim=head_dim)
    assert_close(step.run(), step.expected())
    assert launched() == {"64_f16_d64" if head_dim == 64 else "64_k32_f16_d256"}


def test_strides(emulator: Emulator) -> None:
    step = make_step(emulator, [120, 90], [100, 33], cache=torch.int8, num_kv_heads=2)
    expected = step.run()
    step.q = torch.full((133, 3, 4, 64), torch.nan).bfloat16()[:, 1].copy_(step.q)
    step.kv = step.kv.permute(0, 3, 1, 2, 4).contiguous().permute(0, 2, 3, 1, 4)
    step.block_table = torch.full((2, 19), -7, dtype=torch.int32)[:, : step.block_table.shape[1]].copy_(
        step.block_table
    )
    assert torch.equal(step.run(), expected)


def test_length_beyond_the_table(emulator: Emulator) -> None:
    step = make_step(emulator, [80], [70])
    step.kv[:] = torch.randn_like(step.kv)
    step.block_table[0, -1] = 0
    expected = step.run()
    step.seq_lens[0] = 96
    whole = step.run()
    step.seq_lens[0] = 10**6
    assert torch.equal(step.run(), whole) and not torch.equal(whole, expected)


def test_no_long_rows(emulator: Emulator) -> None:
    step = make_step(emulator, [20, 80], [20, 32])
    assert bool((step.run() == UNTOUCHED).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(70, 2, 68, dtype=torch.bfloat16)[..., :64]}, "multiple of 16 bytes"),
        ({"kv": torch.zeros(9, 2, 1, 16, 64, dtype=torch.float8_e4m3fn)}, "FP8 needs 8.9"),
    ],
)
def test_refusals(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, change: dict[str, Tensor], message: str) -> None:
    monkeypatch.setattr(emulator, "properties", lambda device: DeviceProperties(86, 4, 99 * 1024))
    step = make_step(emulator, [80], [70])
    for name, tensor in change.items():
        setattr(step, name, tensor)
    with pytest.raises(KernelError, match=message):
        step.run()


def test_refusal_of_a_scale(emulator: Emulator) -> None:
    with pytest.raises(InvalidArgument, match=r"scale is 0\.0"):
        make_step(emulator, [80], [70]).run(scale=0.0)


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_that_share_a_table(emulator: Emulator, rows: int) -> None:
    step = make_step(emulator, [80], [70])
    expected = step.run().repeat(rows, 1, 1)
    # One column of a matrix: neighbours of a row of the table are as far apart as those of its only column.
    step.block_table = step.block_table.t().contiguous().t() if rows == 1 else step.block_table.expand(rows, -1)
    step.q, step.seq_lens = step.q.repeat(rows, 1, 1), step.seq_lens.repeat(rows)
    step.cu_q = torch.arange(0, 71 * rows, 70, dtype=torch.int32)
    assert torch.equal(step.run(), expected)


def test_queries_in_front_of_a_row(emulator: Emulator) -> None:
    step = make_step(emulator, [80], [70])
    expected = step.run()[-20:]
    step.q, step.cu_q = torch.cat((torch.ones(180, 2, 64).bfloat16(), step.q[-20:])), step.cu_q.clone()
    step.cu_q[1] = 200
    step.seq_lens = torch.tensor([80], dtype=torch.int32)
    out = step.run()
    assert torch.equal(out[-20:], expected) and not out[:120].any()
