"""Tests with `device` run on the CPU, and on a GPU where there is one; with `emulator` they run device code there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from emulator.backend import Emulator

from wllm_kernels.device.kernel import Kernel, backends

_NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, _NEEDS_GPU])])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
    for kernel in Kernel.all:
        kernel.forget()
