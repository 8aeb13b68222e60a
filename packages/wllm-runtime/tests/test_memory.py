"""The memory plan: what fits, what was asked for, and what cannot be."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from wllm_runtime import ConfigError, EngineConfig, OutOfMemory
from wllm_runtime.memory import MIB, KVBudget, MemoryPlan, host_budget, plan_memory


def plan(num_bytes: int, limit: int | None = None, **settings: Any) -> MemoryPlan:
    budget = KVBudget(num_bytes, "so much is left", "do something", limit, (("memory: free", "1 MiB", "measured"),))
    config = EngineConfig(model="any", **settings)
    return plan_memory(config, budget, bytes_per_token=1024, context_len=1000, max_num_seqs=8)


def test_no_more_blocks_than_the_slots_can_use() -> None:
    made = plan(10**12)
    assert (made.num_kv_blocks, made.max_model_len) == (8 * 63, 1000)
    assert made.kv_bytes == 8 * 63 * 16 * 1024


def test_little_memory_shortens_the_context_and_says_so() -> None:
    made = plan(MIB // 2)
    assert made.num_kv_blocks == 32
    assert made.max_model_len == 512
    assert "1,000" in made.reason_model_len


def test_a_context_that_was_asked_for_is_not_shortened() -> None:
    with pytest.raises(OutOfMemory, match=r"max_model_len=1000 needs 63 KV blocks.*lower max_model_len to 512"):
        plan(MIB // 2, max_model_len=1000)


def test_more_than_the_model_can_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len=1001 .* 1000 tokens"):
        plan(10**12, max_model_len=1001)


def test_blocks_as_given_bound_the_context() -> None:
    made = plan(10**12, num_kv_blocks=10)
    assert (made.num_kv_blocks, made.max_model_len) == (10, 160)


def test_blocks_as_given_stay_within_the_device() -> None:
    assert plan(0, limit=10 * 16 * 1024, num_kv_blocks=10).num_kv_blocks == 10
    with pytest.raises(OutOfMemory, match=r"num_kv_blocks=11 takes .* give at most 10, or do something"):
        plan(0, limit=10 * 16 * 1024, num_kv_blocks=11)
    with pytest.raises(OutOfMemory, match=r"give at most 0"):
        plan(0, limit=-5, num_kv_blocks=1)


def test_a_budget_below_nothing_names_what_is_left_and_what_to_do() -> None:
    with pytest.raises(OutOfMemory, match=r"no KV block of 16 KiB fits: -3 MiB are left \(so much is left\); do some"):
        plan(-3 * MIB)


def test_the_arithmetic_is_shown() -> None:
    rows = plan(MIB // 2).rows
    assert rows[0] == ("memory: free", "1 MiB", "measured")
    assert rows[1] == (
        "kv_blocks",
        "32",
        "0 MiB = 32 x 16 KiB (16 tokens); 512 tokens, 1.0 requests of full length; so much is left",
    )
    assert rows[2][:2] == ("max_model_len", "512")


@pytest.mark.parametrize(("free", "budget"), [(4 << 30, 1 << 30), (64 << 30, 4 << 30)])
def test_a_cpu_gives_a_share_of_the_free_ram(monkeypatch: pytest.MonkeyPatch, free: int, budget: int) -> None:
    class Free:
        available = free

    monkeypatch.setattr(psutil, "virtual_memory", Free)
    assert host_budget().num_bytes == budget
    assert f"{free // MIB:,} MiB" in host_budget().reason
    assert host_budget().limit is None
