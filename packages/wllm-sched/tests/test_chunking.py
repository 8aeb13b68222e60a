"""Chunk policies."""

from __future__ import annotations

from wllm_sched import FixedChunks, TimedChunks


def learned(token_ms: float, decode_ms: float, max_stall_ms: float = 100.0) -> TimedChunks:
    chunks = TimedChunks(max_stall_ms)
    for _ in range(50):
        chunks.observe(0, 8, decode_ms)
        chunks.observe(256, 8, decode_ms + 256 * token_ms)
    return chunks


def test_fixed_chunks_never_learn() -> None:
    chunks = FixedChunks(7)
    chunks.observe(512, 1, 1e6)
    assert chunks.allowance() == 7


def test_fixed_chunks_always_make_progress() -> None:
    assert FixedChunks(0).allowance() == 1


def test_nothing_measured_allows_the_floor() -> None:
    assert TimedChunks(100.0).allowance() == 128


def test_a_mixed_step_stays_under_the_limit() -> None:
    chunks = learned(token_ms=0.1, decode_ms=10.0)
    allowed = chunks.allowance()
    assert allowed % 64 == 0
    assert 10.0 + allowed * 0.1 <= 100.0 < 10.0 + (allowed + 64) * 0.1


def test_a_slow_machine_keeps_the_floor() -> None:
    assert learned(token_ms=5.0, decode_ms=40.0).allowance() == 128
    assert learned(token_ms=0.1, decode_ms=200.0).allowance() == 128


def test_a_longer_stall_allows_more() -> None:
    assert learned(0.1, 10.0, 200.0).allowance() > learned(0.1, 10.0, 100.0).allowance()


def test_a_pure_prefill_is_measured_too() -> None:
    chunks = TimedChunks(100.0)
    chunks.observe(1000, 0, 100.0)
    assert chunks.allowance() == 960


def test_tiny_prefills_are_not_measured() -> None:
    chunks = TimedChunks(100.0)
    chunks.observe(2, 0, 50.0)
    assert chunks.allowance() == 128


def test_an_outlier_is_forgotten() -> None:
    chunks = learned(0.1, 10.0)
    before = chunks.allowance()
    chunks.observe(256, 8, 60_000.0)
    assert chunks.allowance() < before
    for _ in range(60):
        chunks.observe(256, 8, 35.6)
    assert chunks.allowance() == before
