"""The memory plan: what fits, what was asked for, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from wllm_runtime import ConfigError, EngineConfig, OutOfMemory
from wllm_runtime import memory as memory_module
from wllm_runtime.memory import MIB, MemoryPlan, plan_memory


def plan(free_bytes: int, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> MemoryPlan:
    class Free:
        available = free_bytes

    monkeypatch.setattr(memory_module.psutil, "virtual_memory", Free)
    config = EngineConfig(model="any", **settings)
    return plan_memory(config, device=torch.device("cpu"), bytes_per_token=1024, context_len=1000, max_num_seqs=8)


def test_no_more_blocks_than_the_slots_can_use(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(10**12, monkeypatch)
    assert (made.num_kv_blocks, made.max_model_len) == (8 * 63, 1000)
    assert made.kv_bytes == 8 * 63 * 16 * 1024


def test_little_memory_shortens_the_context_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(2 * MIB, monkeypatch)
    assert made.num_kv_blocks == 32
    assert made.max_model_len == 512
    assert "1,000" in made.reason_model_len


def test_a_context_that_was_asked_for_is_not_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemory, match=r"max_model_len=1000 needs 63 KV blocks.*lower max_model_len to 512"):
        plan(2 * MIB, monkeypatch, max_model_len=1000)


def test_more_than_the_model_can_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"max_model_len=1001 .* 1000 tokens"):
        plan(10**12, monkeypatch, max_model_len=1001)


def test_blocks_as_given_bound_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(10**12, monkeypatch, num_kv_blocks=10)
    assert (made.num_kv_blocks, made.max_model_len) == (10, 160)


def test_no_memory_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemory, match="no KV block fits"):
        plan(100, monkeypatch)
