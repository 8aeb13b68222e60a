"""A GPU that is lost to the process is told as that, wherever its loss shows first; other errors stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wllm_kernels import DriverError
from wllm_runtime import EngineConfig
from wllm_runtime import device_check as module
from wllm_runtime.device_check import check_device
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_runtime.testing import generate, save_tiny_llama
from wllm_sched import DeviceLost, EngineClosed, SamplingParams, Submit

GPU = torch.device("cuda", 0)
MORE_LINES = "CUDA error: unknown error\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
# What a lost device makes its callers raise: torch, the libraries behind it, the driver under our own kernels.
ERRORS = [
    torch.AcceleratorError(MORE_LINES),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    DriverError("cannot launch kernel x: the NVIDIA driver returned CUDA_ERROR_LAUNCH_FAILED (719)", 719),
]
KINDS = [type(error).__name__ for error in ERRORS]


class Gpu:
    """Answers what the check asks, or raises `error` where it is asked for `at`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None, at: str = "synchronize"
    ) -> None:
        self.asked: list[str] = []
        self._error, self._at = error, at
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self._ask("synchronize", device))
        monkeypatch.setattr(module.torch, "ones", lambda size, device: self._ask("ones", device))

    def _ask(self, name: str, device: torch.device) -> Any:
        assert device == GPU
        self.asked.append(name)
        if self._error is not None and self._at == name:
            raise self._error
        return SimpleNamespace(item=lambda: self._ask("item", device))


def test_a_device_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    check_device(GPU)
    assert gpu.asked == ["synchronize", "ones", "item"]


@pytest.mark.parametrize("at", ["synchronize", "ones", "item"])
@pytest.mark.parametrize("error", ERRORS, ids=KINDS)
def test_a_lost_one(error: Exception, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Gpu(monkeypatch, error, at)
    with pytest.raises(DeviceLost, match="the GPU no longer works for this process") as caught:
        check_device(GPU)
    told = str(caught.value)
    assert str(error).splitlines()[0] in told and "has slept" in told and "\n" not in told


def test_one_that_is_full_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    Gpu(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"), "ones")
    check_device(GPU)


def test_a_cpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch, ERRORS[0])
    check_device(torch.device("cpu"))
    assert not gpu.asked


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: object) -> Any:
        raise error

    return fail


def break_launch(engine: ModelEngine, error: Exception) -> None:
    engine.runner.launch = failing(error)  # type: ignore[method-assign]


def break_wait(engine: ModelEngine, error: Exception) -> None:
    engine.runner.launch = lambda plan: SimpleNamespace(wait=failing(error))  # type: ignore[method-assign]


def break_event_query(engine: ModelEngine, error: Exception) -> None:
    engine._model_runner._host.num_done = failing(error)  # type: ignore[union-attr, method-assign]


@pytest.fixture
def engine(tmp_path: Path) -> ModelEngine:
    save_tiny_llama(tmp_path)
    config = EngineConfig(model=str(tmp_path), skip_tokenizer_init=True, kv_offload_gib=0.01)
    return create_engine(config)


@pytest.mark.parametrize("break_place", [break_launch, break_wait, break_event_query])
@pytest.mark.parametrize("error", ERRORS, ids=KINDS)
def test_every_place_of_an_engine_tells_it(
    engine: ModelEngine, break_place: Callable[..., None], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_place(engine, error)
    Gpu(monkeypatch, ERRORS[0])
    engine._model_info = SimpleNamespace(device="cuda:0")  # type: ignore[assignment]
    engine.submit(Submit(0, [5, 6, 7], SamplingParams(max_tokens=8)))
    with pytest.raises(DeviceLost):
        while True:
            engine.step()
    with pytest.raises(EngineClosed):
        engine.submit(Submit(1, [5], SamplingParams()))


def test_swaps_without_a_step_tell_it_too(engine: ModelEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    host = engine.scheduler.pool.host
    assert host is not None
    monkeypatch.setattr(type(host), "num_under_way", property(lambda _: 1))
    monkeypatch.setattr(engine.runner, "swap", failing(ERRORS[0]))
    Gpu(monkeypatch, ERRORS[0])
    engine._model_info = SimpleNamespace(device="cuda:0")  # type: ignore[assignment]
    with pytest.raises(DeviceLost):
        engine.step()


@pytest.mark.parametrize("error", ERRORS, ids=KINDS)
def test_an_error_of_a_device_that_works_stays_what_it_is(
    engine: ModelEngine, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_wait(engine, error)
    gpu = Gpu(monkeypatch)
    engine._model_info = SimpleNamespace(device="cuda:0")  # type: ignore[assignment]
    engine.submit(Submit(0, [5, 6, 7], SamplingParams(max_tokens=8)))
    with pytest.raises(type(error)) as caught:
        while True:
            engine.step()
    assert caught.value is error and gpu.asked


def test_a_restart_keeps_the_device(engine: ModelEngine) -> None:
    engine.check_device()
    assert generate(engine, [5, 6, 7], max_tokens=2)
    assert engine.model_info.restart_options == {"device": "cpu"}
