"""The binding of the CUDA driver: its absence, its age and its errors, with a stub in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stub_driver import AVAILABLE, StubLibrary, build

from wllm_kernels import DriverError, DriverTooOld, NoDriver
from wllm_kernels.device.driver import Driver, version_text

needs_compiler = pytest.mark.skipif(not AVAILABLE, reason="the stub driver needs a C compiler (gcc)")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StubLibrary:
    return StubLibrary(build(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def stub(library: StubLibrary) -> StubLibrary:
    library.state.reset()
    return library


def test_no_driver_says_what_to_install() -> None:
    with pytest.raises(
        NoDriver, match=r"no NVIDIA driver: missing-nvcuda cannot be loaded .* CUDA 12.0 \(driver R525\)"
    ):
        Driver.load("missing-nvcuda")


def test_import_loads_no_driver() -> None:
    code = (
        "import ctypes\n"
        "def refuse(*arguments, **options): raise AssertionError(arguments)\n"
        "import torch\n"
        "ctypes.CDLL = refuse\n"
        "import wllm_kernels"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_a_driver_that_does_not_start(stub: StubLibrary) -> None:
    stub.state.init_result = 100
    with pytest.raises(NoDriver, match=r"cuInit returned CUDA_ERROR_OF_STUB \(100\); check that nvidia-smi"):
        Driver.load(str(stub.path))


@needs_compiler
def test_an_old_driver_names_both_versions(stub: StubLibrary) -> None:
    stub.state.version = 11080
    with pytest.raises(DriverTooOld, match=r"it has CUDA 11.8, and wllm-kernels needs CUDA 12.0 \(driver R525\)"):
        Driver.load(str(stub.path))


@needs_compiler
def test_a_driver_without_library_handles_is_too_old(tmp_path: Path) -> None:
    with pytest.raises(DriverTooOld, match=r"has no function cuLibraryLoadData.*update the driver"):
        Driver.load(str(build(tmp_path, "-DWITHOUT_LIBRARIES")))


@needs_compiler
@pytest.mark.parametrize(
    ("result", "words"),
    [
        (700, r"CUDA_ERROR_ILLEGAL_ADDRESS \(700\); .* restart it"),
        (702, "Windows resets a display GPU"),
        (905, "warmup before the graph capture"),
        (1, "see the driver's documentation"),
    ],
)
def test_an_error_has_its_name_and_a_fix(stub: StubLibrary, result: int, words: str) -> None:
    driver = Driver.load(str(stub.path))
    with pytest.raises(DriverError, match=f"cannot do it: the NVIDIA driver returned .*{words}") as caught:
        driver.check(result, "do it")
    assert caught.value.result == result


def test_versions_are_named_as_people_know_them() -> None:
    assert [version_text(version) for version in (12000, 12090, 13000)] == [
        "CUDA 12.0 (driver R525)",
        "CUDA 12.9",
        "CUDA 13.0 (driver R580)",
    ]
