"""R47: a GPU that cannot run models is told by name before anything is loaded. Here on a stub of the driver."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from stub_driver import AVAILABLE, StubLibrary, StubTorch, build

from wllm_kernels import DriverTooOld, NoCudaTorch, NoDeviceCode, NoKernel, UnsupportedByGpu, check_gpu, gpu_check
from wllm_kernels.compiler import container
from wllm_kernels.compiler.families import FAMILIES
from wllm_kernels.compiler.sources import source_of
from wllm_kernels.device.backend import CudaBackend, _InstalledTorch
from wllm_kernels.device.code import CodeSource
from wllm_kernels.device.driver import Driver
from wllm_kernels.device.kernel import Kernel, backends

needs_compiler = pytest.mark.skipif(not AVAILABLE, reason="the stub driver needs a C compiler (gcc)")
GPU = torch.device("cuda", 0)

Pretend = Callable[..., StubLibrary]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StubLibrary:
    return StubLibrary(build(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def pretend(library: StubLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretend]:
    """Makes a GPU of a capability (times ten), a driver of a version and a torch with code for some targets."""

    def make(
        capability: int, driver: int = 12090, torch_has: tuple[str, ...] = ("sm_75", "sm_80", "sm_120")
    ) -> StubLibrary:
        library.state.reset()
        library.state.capability[0], library.state.version = capability, driver
        path = tmp_path / "kernels.wk"
        names = [(family.name, f"sm_{target}") for family in FAMILIES for target in family.targets]
        digests = {family.name: source_of(family).digest for family in FAMILIES}
        container.write(path, "12.9", digests, {name: lzma.compress(b"code") for name in names})
        backend = CudaBackend(
            lambda: Driver.load(str(library.path)), StubTorch, lambda: CodeSource(path, compilers=list)
        )
        monkeypatch.setitem(backends._by_type, "cuda", backend)
        monkeypatch.setattr(gpu_check, "cuda_backend", backend)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Stub GPU")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: divmod(capability, 10))
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(torch_has))
        return library

    yield make
    for kernel in Kernel.all:
        kernel.forget()


@needs_compiler
@pytest.mark.parametrize("capability", [75, 80, 86, 89, 120])
def test_a_gpu_that_runs_models_is_passed_with_one_family_loaded(capability: int, pretend: Pretend) -> None:
    library = pretend(capability)
    check_gpu(GPU)
    assert (library.state.loads, library.state.launches) == (1, 0)


@needs_compiler
@pytest.mark.parametrize(
    ("capability", "driver", "torch_has", "kind", "words"),
    [
        (130, 12090, ("sm_130",), NoKernel, ("Stub GPU (sm_130)", "the container has", "Install a newer wllm-kernels")),
        (70, 12090, ("sm_70",), UnsupportedByGpu, ("Stub GPU has compute capability 7.0", "7.5", "device='cpu'")),
        (120, 12040, ("sm_120",), DriverTooOld, ("Stub GPU", "CUDA 12.4", "driver R570", "update the driver")),
        (90, 12090, ("sm_75", "sm_80"), NoKernel, ("Stub GPU (compute capability 9.0)", "sm_75, sm_80", "pytorch.org")),
    ],
)
def test_a_gpu_that_does_not_is_told_by_name(
    capability: int,
    driver: int,
    torch_has: tuple[str, ...],
    kind: type[NoDeviceCode],
    words: tuple[str, ...],
    pretend: Pretend,
) -> None:
    pretend(capability, driver, torch_has)
    with pytest.raises(kind) as caught:
        check_gpu(GPU)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_cpu_needs_no_check() -> None:
    check_gpu(torch.device("cpu"))


@pytest.mark.parametrize(
    ("targets", "runs"),
    [
        ([], True), (["gfx942"], True), (["sm_80"], True), (["sm_86"], True), (["sm_89"], True), (["sm_90"], False),
        (["sm_75"], False), (["compute_80"], True), (["compute_90"], False), (["sm_90a"], False), (["sm_89a"], True),
        (["sm_80a"], False), (["sm_80f"], True), (["sm_75", "sm_86", "sm_120"], True),
    ],
)  # fmt: skip
def test_which_code_a_gpu_of_8_9_runs(targets: list[str], runs: bool) -> None:
    assert gpu_check._runs_any(targets, 8, 9) is runs


@pytest.mark.parametrize(
    ("driver", "kind", "words"),
    [
        (12040, DriverTooOld, r"built for CUDA 13\.0, and the NVIDIA driver has CUDA 12\.4: update"),
        (13000, NoCudaTorch, "sees no GPU"),
    ],
)
def test_a_torch_that_sees_no_gpu_tells_whether_the_driver_is_why(
    driver: int, kind: type[NoDeviceCode], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(kind, match=words):
        _InstalledTorch().initialise(driver)
