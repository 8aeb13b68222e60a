"""Settings that no model could take are refused with the value and the choice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from wllm_runtime import ConfigError, EngineConfig
from wllm_runtime.settings import Settings, resolve_device, resolve_dtype, resolve_sizes


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("device", "tpu"),
        ("dtype", "int4"),
        ("load_format", "pickle"),
        ("block_size", 17),
        ("max_model_len", 0),
        ("max_num_seqs", -1),
        ("max_num_batched_tokens", 1.5),
        ("num_kv_blocks", True),
        ("pipeline_depth", 0),
        ("gpu_memory_utilization", 1.5),
        ("quantization", "awq"),
        ("kv_cache_dtype", "int4"),
        ("kv_offload_gib", -1.0),
        ("kv_offload_gib", math.nan),
        ("step_wait", "poll"),
        ("max_stall_ms", 0.0),
    ],
)
def test_bad_value_is_named(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{setting}.*{value}"):
        EngineConfig(model="any", **{setting: value})


@pytest.mark.parametrize(
    ("sampling", "message"),
    [({"beams": 4}, "unknown names beams; it takes temperature"), ({"temperature": -1.0}, "temperature.*-1")],
)
def test_bad_sampling_is_named(sampling: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(model="any", override_generation_config=sampling)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has CUDA")
def test_cuda_without_cuda_says_which_torch_and_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"PyTorch 2\..* sees no CUDA device.*install the CUDA build"):
        resolve_device(EngineConfig(model="any", device="cuda"), Settings())


def test_resolved_values_have_reasons() -> None:
    settings = Settings()
    config = EngineConfig(model="any", device="cpu", max_num_seqs=1000)
    device = resolve_device(config, settings)
    assert resolve_dtype(config, torch.bfloat16, device, settings) == torch.float32
    # Each running request needs a token of every step's budget.
    assert resolve_sizes(config, device, settings) == (1000, 1000)
    assert [name for name, _, _ in settings.rows] == ["device", "dtype", "max_num_seqs", "max_num_batched_tokens"]
    assert all(reason for _, _, reason in settings.rows)
