"""Tests with `device` run on the CPU, and on a GPU where there is one; with `emulator` they run device code there.

On a GPU only device code counts: a reference that gets CUDA tensors fails the test.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from emulator.backend import Emulator

from wllm_kernels import reference
from wllm_kernels.device.kernel import DeviceProperties, Kernel, backends
from wllm_kernels.dispatch import OPS
from wllm_kernels.reference import attention_plan as reference_plan

_NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, _NEEDS_GPU])])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda":
        request.getfixturevalue("no_reference_on_cuda")
    return str(request.param)


@pytest.fixture
def no_reference_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """References compute CPU tensors only."""
    monkeypatch.setattr(reference_plan, "attention_plan", _on_cpu_only(reference_plan.attention_plan))
    for op in OPS:
        function = op._functions["cpu"]
        refusing = _on_cpu_only(function)
        monkeypatch.setattr(sys.modules[function.__module__], function.__name__, refusing)
        monkeypatch.setattr(reference, function.__name__, refusing)
        if op._functions["cuda"] is function:
            monkeypatch.setitem(op._functions, "cuda", refusing)


def _on_cpu_only(function: Callable[..., object]) -> Callable[..., object]:
    def refusing(first: torch.Tensor, *rest: object) -> object:
        assert not first.is_cuda, f"{function.__name__} ran its reference on CUDA"
        return function(first, *rest)

    return refusing


@pytest.fixture
def device_code(no_reference_on_cuda: None) -> Iterator[Callable[[], set[str]]]:
    """For tests of a GPU: the kernel families that were launched since the test began; some must be, by its end."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no NVIDIA GPU")
    before = {kernel: kernel.launches for kernel in Kernel.all}

    def launched() -> set[str]:
        return {kernel.family for kernel in Kernel.all if kernel.launches > before.get(kernel, 0)}

    yield launched
    assert launched(), "no kernel was launched"


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def _emulator_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = getattr(pytestconfig, "cache", None)
    return tmp_path_factory.mktemp("emulator") if cache is None else cache.mkdir("emulator")


@pytest.fixture(scope="session")
def _emulator(_emulator_folder: Path) -> Emulator:
    return Emulator(_emulator_folder)


@pytest.fixture
def emulator(_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    if not Emulator.available():
        pytest.skip("the emulator needs g++ and a POSIX system")
    _emulator.seed = 0
    monkeypatch.setitem(backends._by_type, "cpu", _emulator)
    yield _emulator


@pytest.fixture
def turing(emulator: Emulator, _emulator_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Device code takes the branches for Turing, and finds its shared memory."""
    gpu = Emulator(_emulator_folder, capability=75)
    monkeypatch.setattr(gpu, "properties", lambda device: DeviceProperties(75, 4, 64 * 1024))
    monkeypatch.setitem(backends._by_type, "cpu", gpu)
    return gpu
    for kernel in Kernel.all:
        kernel.forget()
