"""Decode attention in the emulator against the reference, which is float32 throughout."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, reference
from wllm_kernels.device import attention, attention_decode
from wllm_kernels.device.kernel import DeviceProperties

DTYPES = [torch.float16, torch.bfloat16]
FULL = pytest.mark.full
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@dataclass
class Step:
    """Rows in shuffled blocks. What no row owns is NaN, or -7 in the block table."""

    q: Tensor
    kv: Tensor
    kv_scale: Tensor | None
    block_table: Tensor
    seq_lens: Tensor
    cu_q: Tensor


def make_step(
    emulator: Emulator,
    lengths: list[int],
    counts: list[int],
    *,
    dtype: torch.dtype = torch.float16,
    cached: torch.dtype | None = None,
    group: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    extra_tokens: int = 0,
) -> Step:
    blocks = [-(-length // block_size) for length in lengths]
    max_blocks, num_blocks = max(blocks) + 1, sum(blocks) + 2
    kv = torch.full((num_blocks, 2, num_kv_heads, block_size, head_dim), torch.nan)
    kv_scale = torch.full(kv.shape[:4], torch.nan) if cached == torch.int8 else None
    table = torch.full((len(lengths), max_blocks), -7, dtype=torch.int32)
    ids = iter(torch.randperm(num_blocks).tolist())
    for row, length in enumerate(lengths):
        for number in range(blocks[row]):
            table[row, number] = block = next(ids)
            cells = min(block_size, length - number * block_size)
            kv[block, :, :, :cells] = torch.randn(2, num_kv_heads, cells, head_dim)
            if kv_scale is not None:
                kv_scale[block, :, :, :cells] = torch.rand(2, num_kv_heads, cells) / 50 + 1e-3
    if kv_scale is not None:
        kv = torch.where(kv.isnan(), 99, (kv / kv_scale.unsqueeze(-1)).round().clamp(-128, 127))
        kv_scale = emulator.guard(kv_scale.half())
    cu_q = torch.tensor([0, *counts]).cumsum(0).int()
    q = torch.randn(int(cu_q[-1]) + extra_tokens, group * num_kv_heads, head_dim)
    guarded = [q.to(dtype), kv.to(cached or dtype), table, torch.tensor(lengths, dtype=torch.int32), cu_q]
    q, kv, table, seq_lens, cu_q = (emulator.guard(tensor) for tensor in guarded)
    return Step(q, kv, kv_scale, table, seq_lens, cu_q)


def run(
    emulator: Emulator, step: Step, *, scale: float = 0.125, causal: bool = True, window: int = 0, softcap: float = 0.0
) -> Tensor:
    """One plan for two layers: the second finds the counters as the first did."""
    tables = step.block_table, step.seq_lens, step.cu_q
    most = max(step.cu_q.diff()[step.seq_lens > 0].tolist(), default=1)
    plan = attention.attention_plan(step.kv, *tables, step.q.shape[1], causal, window, most, None)
    assert len(plan.tensors) == 1, "rows for the prefill kernel"
    workspace = emulator.guard(torch.full((plan.workspace_elements,), 127).to(step.kv.dtype))
    results = []
    for _ in range(2):
        out = emulator.guard(torch.full(step.q.shape, torch.nan, dtype=step.q.dtype))
        attention.paged_attention(
            step.q, step.kv, *tables, scale, causal, window, softcap, step.kv_scale, plan.tensors, plan.sizes,
            workspace, out,
        )  # fmt: skip
        results.append(out)
    assert torch.equal(*(result.nan_to_num() for result in results))
    return results[0].float()


def expected(step: Step, *, scale: float = 0.125, causal: bool = True, window: int = 0, softcap: float = 0.0) -> Tensor:
    out = torch.empty(step.q.shape)
    tables = step.block_table, step.seq_lens, step.cu_q
    reference.paged_attention(
        step.q, step.kv, *tables, scale, causal, window, softcap, step.kv_scale, (), (), None, out
    )
    return out


def check(emulator: Emulator, step: Step, **options: float) -> None:
    tolerance = TOLERANCE[step.q.dtype]
    torch.testing.assert_close(
        run(emulator, step, **options), expected(step, **options), atol=tolerance, rtol=tolerance
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_rows(emulator: Emulator, dtype: torch.dtype, seed: int) -> None:
    emulator.seed = seed
    check(emulator, make_step(emulator, [5, 130, 16, 1, 333], [1] * 5, dtype=dtype))


HEAD_DIMS = [64, pytest.param(80, marks=FULL), pytest.param(96, marks=FULL), pytest.param(128, marks=FULL)]
HEAD_DIMS += [pytest.param(256, marks=FULL)]
# Its units have 64 cells, and two of its blocks fit on a multiprocessor: the tests of parts count on both.
PART_DIM = 80


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("cached", [None, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", DTYPES)
def test_caches(emulator: Emulator, dtype: torch.dtype, cached: torch.dtype | None, head_dim: int) -> None:
    step = make_step(emulator, [70, 200, 3], [1, 2, 1], dtype=dtype, cached=cached, head_dim=head_dim)
    check(emulator, step, scale=head_dim**-0.5)


@pytest.mark.parametrize("cached", [None, torch.int8])
@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=FULL), pytest.param(256, marks=FULL)])
def test_turing(turing: Emulator, cached: torch.dtype | None, head_dim: int) -> None:
    kernel = attention_decode._KERNELS[True, head_dim, torch.float16, cached or torch.float16]
    before = kernel.launches
    check(turing, make_step(turing, [70, 300, 3], [1, 2, 1], cached=cached, head_dim=head_dim))
    assert kernel.launches > before


@pytest.mark.parametrize("group", [1, 2, 7, 8, 16, 20])
def test_group_sizes(emulator: Emulator, group: int) -> None:
    check(emulator, make_step(emulator, [5, 90], [1, 1], group=group))


@pytest.mark.parametrize("causal", [True, False])
def test_several_queries(emulator: Emulator, causal: bool) -> None:
    check(emulator, make_step(emulator, [9, 40, 66, 5], [9, 3, 7, 5], group=7), causal=causal)


# The window ends within a slice, between slices, and lies within one.
@pytest.mark.parametrize("window", [1, 16, 37, 64])
def test_window(emulator: Emulator, window: int) -> None:
    step = make_step(emulator, [5, 100, 64, 300], [1, 5, 1, 1])
    for row, length in enumerate(step.seq_lens.tolist()):  # blocks in front of the window have been freed
        count = int(step.cu_q[row + 1] - step.cu_q[row])
        step.block_table[row, : max(0, length - count - window + 1) // 16] = -7
    check(emulator, step, window=window)


def test_softcap(emulator: Emulator) -> None:
    check(emulator, make_step(emulator, [40, 100], [1, 3]), softcap=3.0, scale=1.0)


@pytest.mark.parametrize("block_size", [32, 48])
def test_block_sizes(emulator: Emulator, block_size: int) -> None:
    check(emulator, make_step(emulator, [40, 200, 96], [1, 1, 2], block_size=block_size))


def test_padding_rows_and_tokens_give_zero(emulator: Emulator) -> None:
    step = make_step(emulator, [0, 40, 0, 0, 7], [1, 2, 30, 0, 1], extra_tokens=5)
    out = run(emulator, step)
    assert not out[0].any() and not out[3:33].any() and not out[34:].any()
    torch.testing.assert_close(out, expected(step), atol=2e-3, rtol=2e-3)


def test_more_rows_than_threads_plan(emulator: Emulator) -> None:
    lengths = torch.randint(1, 20, (1100,)).tolist()
    check(emulator, make_step(emulator, lengths, [1] * 1100, group=1, num_kv_heads=1, head_dim=PART_DIM))


def test_queries_in_front_of_the_row_give_zero(emulator: Emulator) -> None:
    step = make_step(emulator, [5], [5])
    want = expected(step)
    step.seq_lens.fill_(3)
    step.q[2:] = step.q[:3].clone()
    out = run(emulator, step)
    assert not out[:2].any()
    torch.testing.assert_close(out[2:], want[:3], atol=2e-3, rtol=2e-3)


def test_nothing_but_padding(emulator: Emulator) -> None:
    assert not run(emulator, make_step(emulator, [0, 0], [0, 0], extra_tokens=3)).any()


# 100 blocks: parts of one segment, which merge in two levels, and of segments that end within blocks. Four warps write
# the seven lines of each.
@pytest.mark.parametrize("lengths", [[6400], [3000, 100, 2500]])
def test_many_parts(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, lengths: list[int]) -> None:
    gpu = DeviceProperties(89, num_multiprocessors=50, max_shared_bytes=99 * 1024)
    monkeypatch.setattr(emulator, "properties", lambda _: gpu)
    check(emulator, make_step(emulator, lengths, [1] * len(lengths), group=7, num_kv_heads=1, head_dim=PART_DIM))


# What a block writes must be there when the last one to arrive merges it, in whatever order their warps run.
@pytest.mark.full
def test_parts_arrive_whole(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceProperties(89, num_multiprocessors=50, max_shared_bytes=99 * 1024)
    monkeypatch.setattr(emulator, "properties", lambda _: gpu)
    step = make_step(emulator, [600] * 20, [1] * 20, group=7, num_kv_heads=1)
    for seed in range(20):
        emulator.seed = seed
        check(emulator, step)


# 10 blocks for 15 units of each of two heads.
def test_parts_with_an_odd_number_of_slices(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceProperties(89, num_multiprocessors=5, max_shared_bytes=99 * 1024)
    monkeypatch.setattr(emulator, "properties", lambda _: gpu)
    check(emulator, make_step(emulator, [960], [1], cached=torch.int8, head_dim=PART_DIM))


# 40 units in each of 2 blocks: more than a warp looks up at once.
def test_long_parts(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceProperties(89, num_multiprocessors=1, max_shared_bytes=99 * 1024)
    monkeypatch.setattr(emulator, "properties", lambda _: gpu)
    check(emulator, make_step(emulator, [5100], [1], group=1, num_kv_heads=1, head_dim=PART_DIM))


# 4 blocks for 18 segments, which lie behind each other.
def test_more_segments_than_blocks(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceProperties(89, num_multiprocessors=2, max_shared_bytes=99 * 1024)
    monkeypatch.setattr(emulator, "properties", lambda _: gpu)
    lengths, counts = [300, 5, 700, 0, 65, 16, 400], [1, 1, 5, 40, 1, 16, 1]
    check(emulator, make_step(emulator, lengths, counts, group=3, head_dim=PART_DIM))


# The first tile sees one unit, the others two, which go to two blocks.
def test_tiles_of_different_lengths(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceProperties(89, num_multiprocessors=50, max_shared_bytes=99 * 1024)
    monkeypatch.setattr(emulator, "properties", lambda _: gpu)
    check(emulator, make_step(emulator, [66], [7], group=7, num_kv_heads=1, head_dim=PART_DIM))


# Aligned, 3 parts of 4 would be empty.
def test_rows_of_very_different_lengths(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceProperties(89, num_multiprocessors=5, max_shared_bytes=99 * 1024)
    monkeypatch.setattr(emulator, "properties", lambda _: gpu)
    check(emulator, make_step(emulator, [2600, 70, 70], [1, 1, 1], head_dim=PART_DIM))


def test_a_step_with_long_rows(emulator: Emulator) -> None:
    step = make_step(emulator, [70, 50, 0, 20, 30], [1, 40, 1, 2, 20], extra_tokens=2)
    tables = step.block_table, step.seq_lens, step.cu_q
    out = emulator.guard(torch.full(step.q.shape, torch.nan, dtype=step.q.dtype))
    attention.paged_attention(step.q, step.kv, *tables, 0.125, True, 0, 0.0, None, (), (), None, out)
    torch.testing.assert_close(out.float(), expected(step), atol=2e-3, rtol=2e-3)


def test_a_plan_filled_anew(emulator: Emulator) -> None:
    step = make_step(emulator, [300, 200, 100], [1, 1, 1])
    tables = step.block_table, step.seq_lens, step.cu_q
    plan = attention.attention_plan(step.kv, *tables, 8, True, 0, 1, None)
    step.seq_lens.copy_(torch.tensor([0, 17, 99]))
    step.block_table[0] = -7
    assert attention.attention_plan(step.kv, *tables, 8, True, 0, 1, plan) is plan
    out = torch.full_like(step.q, torch.nan)
    attention.paged_attention(step.q, step.kv, *tables, 0.125, True, 0, 0.0, None, plan.tensors, plan.sizes, None, out)
    torch.testing.assert_close(out.float(), expected(step), atol=2e-3, rtol=2e-3)


def test_lengths_beyond_the_table_read_nothing_else(emulator: Emulator) -> None:
    step = make_step(emulator, [64], [1])
    step.block_table = emulator.guard(step.block_table[:, :4].clone())
    clipped = expected(step)
    step.seq_lens += 1000
    torch.testing.assert_close(run(emulator, step), clipped, atol=2e-3, rtol=2e-3)


def test_views_of_wider_tensors(emulator: Emulator) -> None:
    step = make_step(emulator, [40, 100], [1, 2])
    plain = run(emulator, step)
    wide = torch.full((3, 12, 80), torch.nan, dtype=step.q.dtype)
    wide[:, 2:10, 8:72] = step.q
    step.q = wide[:, 2:10, 8:72]
    step.kv = step.kv.transpose(2, 3).contiguous().transpose(2, 3)  # a token's heads are neighbours
    assert torch.equal(run(emulator, step), plain)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_int8_values(emulator: Emulator, dtype: torch.dtype) -> None:
    step = make_step(emulator, [256], [1], dtype=dtype, cached=torch.int8, group=1, num_kv_heads=1)
    values = torch.arange(-128, 128).to(torch.int8)
    step.kv[step.block_table[0, :16].long(), 1, 0] = values.view(16, 16, 1)
    step.kv_scale.fill_(1.0)
    step.q.zero_()
    # All weights are equal: minus a half, the mean.
    torch.testing.assert_close(run(emulator, step), torch.full((1, 1, 64), -0.5), atol=1e-3, rtol=0)


@pytest.mark.parametrize("factor", [1e-3, 30.0])
def test_scales_of_any_size(emulator: Emulator, factor: float) -> None:
    step = make_step(emulator, [200], [1], cached=torch.int8)
    values = step.kv_scale[:, 1].float() * factor
    step.kv_scale[:, 1] = torch.where(torch.rand(values.shape) < 0.3, 1e-7, values).half()
    want = expected(step)
    torch.testing.assert_close(run(emulator, step) / factor, want / factor, atol=2e-3, rtol=2e-3)


# As f16 these queries would overflow or vanish.
@pytest.mark.parametrize("factor", [1e30, 1e-38])
def test_queries_of_any_size(emulator: Emulator, factor: float) -> None:
    step = make_step(emulator, [200], [1], dtype=torch.bfloat16, cached=torch.int8)
    step.q *= factor
    check(emulator, step, scale=0.125 / factor)


def test_scale_that_is_not_a_number(emulator: Emulator) -> None:
    step = make_step(emulator, [40], [1], cached=torch.int8)
    step.kv_scale[step.block_table[0, 0].long(), 1, :, 3] = torch.nan
    assert bool(run(emulator, step).isnan().all())


def test_scale_of_zero(emulator: Emulator) -> None:
    step = make_step(emulator, [40], [1], cached=torch.int8)
    step.kv_scale[step.block_table[0, 1].long(), 1] = 0.0
    step.kv[step.block_table[0, 1].long(), 1] = 0
    check(emulator, step)


def test_misaligned_queries(emulator: Emulator) -> None:
    step = make_step(emulator, [40], [1])
    step.q = torch.zeros(1, 8, 72, dtype=torch.float16)[..., 4:68]
    with pytest.raises(InvalidArgument, match="starts at no multiple of 16 bytes"):
        run(emulator, step)


def test_plan_of_another_step(emulator: Emulator) -> None:
    step, other = make_step(emulator, [40], [1]), make_step(emulator, [40, 3], [1, 1])
    plan = attention.attention_plan(other.kv, other.block_table, other.seq_lens, other.cu_q, 8, True, 0, 1, None)
    tables = step.block_table, step.seq_lens, step.cu_q
    with pytest.raises(InvalidArgument, match="make a plan for each step"):
        attention.paged_attention(
            step.q, step.kv, *tables, 0.125, True, 0, 0.0, None, plan.tensors, plan.sizes, None, step.q
        )
    with pytest.raises(InvalidArgument, match="out is a plan for"):
        attention.attention_plan(step.kv, *tables, 8, True, 0, 1, plan)
