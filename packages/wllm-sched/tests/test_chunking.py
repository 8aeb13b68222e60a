"""Chunk policies, given measurements one by one."""

from __future__ import annotations

import math

import pytest

from wllm_sched import Chunk, FixedChunks, TimedChunks


def learned(token_ms: float, decode_ms: float, max_stall_ms: float = 100.0, pair_ms: float = 0.0) -> TimedChunks:
    chunks = TimedChunks(max_stall_ms)
    for number in range(20):
        chunks.observe([], 8, decode_ms)
        start = 256 * number
        chunks.observe([Chunk(start, 256)], 8, decode_ms + 256 * (token_ms + pair_ms * (start + 128)))
    return chunks


def test_fixed_chunks_never_learn() -> None:
    chunks = FixedChunks(7)
    chunks.observe([Chunk(0, 512)], 1, 1e6)
    assert chunks.allowance(0, [], 0) == 7
    assert chunks.allowance(0, [Chunk(0, 3), Chunk(5, 2)], 0) == 2
    assert chunks.allowance(0, [Chunk(0, 7)], 0) == 0


def test_fixed_chunks_always_make_progress() -> None:
    assert FixedChunks(0).allowance(0, [], 0) == 1


def test_nothing_measured_allows_the_first_number() -> None:
    chunks = TimedChunks(100.0)
    assert chunks.allowance(0, [], 0) == 128
    assert chunks.allowance(0, [Chunk(0, 100)], 0) == 28
    assert chunks.allowance(0, [Chunk(0, 128)], 0) == 0


@pytest.mark.parametrize("max_stall_ms", [1e-9, 1e9, 1e308, math.inf])
@pytest.mark.parametrize("elapsed_ms", [0.0, 1e-9, 1e7])
def test_no_limit_and_no_time_is_beyond_the_arithmetic(max_stall_ms: float, elapsed_ms: float) -> None:
    chunks = TimedChunks(max_stall_ms)
    for _ in range(4):
        chunks.observe([Chunk(0, 512), Chunk(10**6, 1)], 8, elapsed_ms)
        assert chunks.allowance(0, [], 8) >= 16
        assert chunks.allowance(10**6, [Chunk(0, 8192)], 8) >= 0
        chunks.observe([], 8, elapsed_ms)


def test_a_mixed_step_stays_under_the_limit() -> None:
    allowed = learned(token_ms=0.1, decode_ms=10.0).allowance(0, [], 0)
    assert allowed % 64 == 0
    assert 10.0 + allowed * 0.1 <= 100.0 < 10.0 + (allowed + 64) * 0.1


@pytest.mark.parametrize("start", [0, 2_000, 30_000])
def test_attention_to_earlier_tokens_counts(start: int) -> None:
    token_ms, pair_ms = 0.1, 0.1 / 8192
    allowed = learned(token_ms, 10.0, pair_ms=pair_ms).allowance(start, [], 0)
    took = [10.0 + n * (token_ms + pair_ms * (start + n / 2)) for n in (allowed, allowed + 64)]
    assert took[0] <= 101.0 < took[1] + 12.0


def test_chunks_of_one_step_share_its_time() -> None:
    chunks = learned(token_ms=0.1, decode_ms=10.0)
    assert chunks.allowance(0, [Chunk(0, 512)], 0) == 384
    assert chunks.allowance(0, [Chunk(0, 512), Chunk(0, 340)], 0) == 44
    assert chunks.allowance(0, [Chunk(0, 512), Chunk(0, 384)], 0) == 0


def test_the_step_as_a_whole_has_a_round_size() -> None:
    assert learned(token_ms=0.1, decode_ms=10.0).allowance(0, [], 17) == 896 - 17
    assert TimedChunks(100.0).allowance(0, [], 17) == 128 - 17
    assert TimedChunks(100.0).allowance(0, [], 200) == 16


def test_a_slow_machine_gets_small_chunks() -> None:
    assert learned(token_ms=1.0, decode_ms=40.0).allowance(0, [], 0) == 48
    assert learned(token_ms=50.0, decode_ms=40.0).allowance(0, [], 0) == 16


def test_decodes_that_take_the_whole_limit_do_not_starve_prefill() -> None:
    assert learned(token_ms=0.1, decode_ms=200.0).allowance(0, [], 0) == 448


def test_a_longer_stall_allows_more() -> None:
    assert learned(0.1, 10.0, 200.0).allowance(0, [], 0) > learned(0.1, 10.0, 100.0).allowance(0, [], 0)


def test_a_pure_prefill_is_measured_too() -> None:
    chunks = TimedChunks(100.0)
    chunks.observe([Chunk(0, 1000)], 0, 100.0)
    assert chunks.allowance(0, [], 0) == 960


def test_tiny_prefills_are_not_measured() -> None:
    chunks = TimedChunks(100.0)
    chunks.observe([Chunk(0, 2)], 0, 50.0)
    assert chunks.allowance(0, [], 0) == 128


def test_an_outlier_hardly_matters() -> None:
    chunks = learned(0.1, 10.0)
    before = chunks.allowance(0, [], 0)
    for elapsed_ms in (60_000.0, 0.0):
        chunks.observe([], 8, elapsed_ms)
        assert chunks.allowance(0, [], 0) == before
    chunks.observe([Chunk(0, 256)], 8, 60_000.0)
    assert before / 2 <= chunks.allowance(0, [], 0) < before
    for _ in range(12):
        chunks.observe([Chunk(0, 256)], 8, 35.6)
    assert chunks.allowance(0, [], 0) == before


def test_a_first_measurement_far_off_holds_only_until_the_second() -> None:
    chunks = TimedChunks(100.0)
    chunks.observe([Chunk(0, 128)], 16, 5_000.0)
    assert chunks.allowance(0, [], 0) == 16
    chunks.observe([Chunk(0, 16)], 16, 0.3)
    assert chunks.allowance(0, [], 0) >= 2048
