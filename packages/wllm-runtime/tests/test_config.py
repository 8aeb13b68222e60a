"""Settings that no model could take are refused with the value and the choice."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from wllm_runtime import ConfigError, EngineConfig, step_limit
from wllm_runtime import settings as settings_module
from wllm_runtime.config import StepWait
from wllm_runtime.settings import (
    Settings,
    resolve_device,
    resolve_dtype,
    resolve_kv_dtype,
    resolve_sizes,
    resolve_wait,
)


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
        ("max_stall_ms", math.inf),
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has CUDA")
def test_a_cuda_torch_that_sees_no_gpu_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """R47: a driver older than torch's CUDA, for one."""
    problem = SimpleNamespace(problem="the NVIDIA driver has CUDA 12.4: update the driver")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(settings_module, "capabilities", lambda: problem)
    settings = Settings()
    assert resolve_device(EngineConfig(model="any"), settings).type == "cpu"
    assert "CUDA 12.4: update the driver" in settings.rows[0][2]
    with pytest.raises(ConfigError, match=r"sees no CUDA device: .*CUDA 12\.4: update the driver; or use device='cpu'"):
        resolve_device(EngineConfig(model="any", device="cuda"), Settings())


def test_resolved_values_have_reasons() -> None:
    settings = Settings()
    config = EngineConfig(model="any", device="cpu", max_num_seqs=1000)
    device = resolve_device(config, settings)
    assert resolve_dtype(config, torch.bfloat16, device, settings) == torch.float32
    assert resolve_kv_dtype(config, torch.float32, device, settings) == torch.float32
    # Each running request needs a token of every step's budget.
    assert resolve_sizes(config, None, settings) == (1000, 1000)
    assert [name for name, _, _ in settings.rows] == [
        "device",
        "dtype",
        "kv_cache_dtype",
        "max_num_seqs",
        "max_num_batched_tokens",
    ]
    assert all(reason for _, _, reason in settings.rows)


@pytest.mark.parametrize(
    ("free_gib", "sizes"),
    [(None, (64, 512)), (1, (64, 2048)), (11, (64, 2048)), (22, (128, 4096)), (40, (256, 8192)), (139, (256, 8192))],
)
def test_sizes_grow_with_the_free_memory(free_gib: int | None, sizes: tuple[int, int]) -> None:
    settings = Settings()
    free = None if free_gib is None else free_gib << 30
    assert resolve_sizes(EngineConfig(model="any"), free, settings) == sizes
    assert ("CPU" if free is None else f"{free_gib}.0 GiB free") in settings.rows[0][2]


def test_eight_bit_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    int8, fp8 = EngineConfig(model="any", kv_cache_dtype="int8"), EngineConfig(model="any", kv_cache_dtype="fp8")
    settings, cuda = Settings(), torch.device("cuda")
    assert resolve_kv_dtype(fp8, torch.float32, torch.device("cpu"), settings) == torch.float8_e4m3fn
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert resolve_kv_dtype(int8, torch.float16, cuda, settings) == torch.int8
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='fp8' needs .* 8\.9 or newer, .* has 8\.6; use 'int8'"):
        resolve_kv_dtype(fp8, torch.float16, cuda, settings)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert resolve_kv_dtype(fp8, torch.float16, cuda, settings) == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("step_wait", "cores", "spins"),
    [("auto", 6, True), ("auto", 5, False), ("auto", None, False), ("spin", 2, True), ("block", 16, False)],
)
def test_waiting_spins_where_a_core_can_be_spared(
    monkeypatch: pytest.MonkeyPatch, step_wait: StepWait, cores: int | None, spins: bool
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: cores)
    settings, config = Settings(), EngineConfig(model="any", step_wait=step_wait)
    assert resolve_wait(config, torch.device("cuda"), settings) is spins
    assert settings.rows[0][:2] == ("step_wait", "spin" if spins else "block")
    assert resolve_wait(config, torch.device("cpu"), settings) is False


@pytest.mark.parametrize(("is_limited", "milliseconds"), [(True, 1000.0), (False, None)])
def test_a_display_bounds_steps(is_limited: bool, milliseconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_limit, "has_time_limit", lambda device: is_limited)
    settings = Settings()
    assert step_limit.resolve_step_limit(torch.device("cuda", 0), settings) == milliseconds
    assert [row[:2] for row in settings.rows] == ([("max_step_ms", "1,000")] if is_limited else [])


def test_the_start_is_timed_by_phase() -> None:
    settings = Settings()
    with settings.phase("weights"):
        pass
    with settings.phase("graphs"):
        pass
    settings.add_weights(3 << 20, is_random=False)
    settings.add_start()
    assert settings.rows == [
        ("weights", "3 MiB", "loaded in 0.0 s"),
        ("start", "0.0 s", "weights 0.0 s, graphs 0.0 s; without loading Python's modules"),
    ]
