"""Attention on a GPU against the reference on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from wllm_kernels import paged_attention
from wllm_kernels.selfcheck.agreement import (
    FP8,
    Mask,
    Shape,
    assert_attention,
    attend,
    check_attention,
    make_step,
    plan_of,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device_code")]

# Decode rows, verified drafts, a short chunk, whole prompts, a chunk behind a prefix, and a padding row.
LENGTHS = [1, 17, 300, 129, 64, 0, 700, 33, 260]
COUNTS = [1, 1, 1, 5, 64, 1, 190, 33, 130]
DECODE = [1, 15, 16, 17, 255, 1030, 0, 64, 700, 3000]
HALF = [torch.bfloat16, torch.float16]
_TOO_OLD_FOR_FP8 = not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9)
CACHES = [
    torch.int8,
    pytest.param(FP8, marks=pytest.mark.skipif(_TOO_OLD_FOR_FP8, reason="FP8 needs compute capability 8.9")),
]


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", HALF)
def test_mixed_batches(dtype: torch.dtype, dim: int, block: int) -> None:
    check_attention("cuda", Shape(dim=dim, block=block, dtype=dtype), Mask(), LENGTHS, COUNTS, spare=3)


@pytest.mark.parametrize("kv_heads", [1, 3])
@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 16, 32])
@pytest.mark.parametrize("dtype", HALF)
def test_groups(dtype: torch.dtype, group: int, kv_heads: int) -> None:
    shape = Shape(heads=group * kv_heads, kv_heads=kv_heads, dim=128, dtype=dtype)
    check_attention("cuda", shape, Mask(), LENGTHS, COUNTS)
    check_attention("cuda", shape, Mask(), DECODE, [1] * len(DECODE))


@pytest.mark.parametrize("window", [0, 1, 16, 100, 1000])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("dim", [64, 256])
def test_windows_and_soft_caps(window: int, softcap: float, dim: int) -> None:
    check_attention("cuda", Shape(dim=dim), Mask(window=window, softcap=softcap), LENGTHS, COUNTS)
    check_attention("cuda", Shape(dim=dim), Mask(window=window, softcap=softcap), DECODE, [1] * len(DECODE))


@pytest.mark.parametrize("dtype", HALF)
def test_without_a_causal_mask(dtype: torch.dtype) -> None:
    check_attention("cuda", Shape(dtype=dtype), Mask(causal=False), LENGTHS, COUNTS)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", HALF)
def test_quantised_caches(cache: torch.dtype, dim: int, dtype: torch.dtype) -> None:
    shape = Shape(heads=14, kv_heads=2, dim=dim, dtype=dtype, cache=cache)
    check_attention("cuda", shape, Mask(), LENGTHS, COUNTS)
    check_attention("cuda", shape, Mask(window=70), DECODE, [1] * len(DECODE))


@pytest.mark.parametrize("dim", [8, 16, 64, 128])
@pytest.mark.parametrize("block", [4, 16])
def test_float32(dim: int, block: int) -> None:
    check_attention("cuda", Shape(dim=dim, block=block, dtype=torch.float32), Mask(), LENGTHS, COUNTS)
    check_attention(
        "cuda", Shape(dim=dim, block=block, dtype=torch.float32), Mask(window=30, softcap=9.0), LENGTHS, COUNTS
    )


@pytest.mark.parametrize("dtype", HALF)
def test_a_block_size_for_small_models(dtype: torch.dtype) -> None:
    check_attention("cuda", Shape(dim=16, block=8, dtype=dtype), Mask(), LENGTHS, COUNTS)


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(14, 2, 64), (32, 8, 128), (32, 4, 128)])
def test_long_contexts(heads: int, kv_heads: int, dim: int, cache: torch.dtype) -> None:
    shape = Shape(heads=heads, kv_heads=kv_heads, dim=dim, cache=cache)
    check_attention("cuda", shape, Mask(), [33_000], [1])
    check_attention("cuda", shape, Mask(window=4096), [33_000, 9, 12_345], [1, 1, 1])


def test_many_ragged_rows() -> None:
    lengths = [1 + 37 * row % 1500 for row in range(150)]
    check_attention("cuda", Shape(heads=14, kv_heads=2, dim=64), Mask(), lengths, [1] * 150)


@pytest.mark.parametrize("dim", [64, 128])
def test_long_prompts(dim: int) -> None:
    shape = Shape(heads=8, kv_heads=2, dim=dim)
    check_attention("cuda", shape, Mask(), [2100, 513], [2100, 513])
    check_attention("cuda", shape, Mask(window=600), [4500, 2100], [512, 2100])


def test_every_length_of_a_block_boundary() -> None:
    for length in range(62, 67):
        for count in range(62, length + 1):
            check_attention("cuda", Shape(), Mask(), [length, length], [count, 1])


def test_layers_that_lie_between_each_other() -> None:
    step, mask = make_step(Shape(), LENGTHS, COUNTS).to("cuda"), Mask()
    plain = attend(step, mask)
    step.kv = torch.stack((torch.full_like(step.kv, torch.nan), step.kv), 1)[:, 1]
    assert torch.equal(attend(step, mask), plain)


def test_results_repeat_exactly() -> None:
    step, mask = make_step(Shape(heads=32, kv_heads=8, dim=128), [9000, 40, 3000], [1, 1, 1]).to("cuda"), Mask()
    first = attend(step, mask)
    assert all(torch.equal(attend(step, mask), first) for _ in range(20))


def test_cache_beyond_32_bits() -> None:
    shape = Shape(heads=8, kv_heads=8, dim=128, dtype=torch.float16)
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of free GPU memory")
    step, mask = make_step(shape, [200, 300], [1, 150]).to("cuda"), Mask()
    small, shift = step.kv, 2**31 // step.kv[0].numel() + 7
    step.kv = torch.empty(shift + len(small), *small.shape[1:], dtype=small.dtype, device="cuda")
    step.kv[shift:] = small
    step.block_table = torch.where(step.block_table < len(small), step.block_table + shift, step.block_table)
    out = attend(step, mask)
    step.kv, step.block_table = small, step.block_table - shift
    assert_attention(step, mask, out)


def test_mixed_batch_runs_decode_and_prefill_code(device_code: Callable[[], set[str]]) -> None:
    check_attention("cuda", Shape(dim=128), Mask(), LENGTHS, COUNTS)
    assert len({family for family in device_code() if family.startswith("attention")}) >= 2, device_code()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_neither_allocates_nor_synchronises() -> None:
    step, mask = make_step(Shape(dim=128), LENGTHS, COUNTS).to("cuda"), Mask()
    plan, out = plan_of(step, mask), torch.empty_like(step.q)
    workspace = torch.empty(plan.workspace_elements, dtype=step.kv.dtype, device="cuda")
    attend(step, mask, plan=plan, workspace=workspace)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        plan_of(step, mask, out=plan)
        paged_attention(step.q, step.kv, *step.tables, scale=0.1, plan=plan, workspace=workspace, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
