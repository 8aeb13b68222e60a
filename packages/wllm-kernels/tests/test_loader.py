"""Loading and launching through a stub of the driver: what is loaded and when, and what arrives at a launch."""

from __future__ import annotations

import lzma
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from stub_driver import AVAILABLE, StubLibrary, StubTorch, build

from wllm_kernels import DriverError, DriverTooOld, NoKernel, UnsupportedByGpu, gpu_check, has_time_limit
from wllm_kernels.compiler import container
from wllm_kernels.compiler.families import Family
from wllm_kernels.compiler.sources import source_of
from wllm_kernels.device.backend import CudaBackend
from wllm_kernels.device.code import CodeSource
from wllm_kernels.device.driver import Driver
from wllm_kernels.device.kernel import DeviceProperties

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the stub driver needs a C compiler (gcc)")

# Two families without kernels of their own: the stub driver does not look inside.
FAMILIES = (Family("first", ()), Family("second", ()))
GPU, OTHER_GPU = torch.device("cuda", 0), torch.device("cuda", 1)

MakeBackend = Callable[..., CudaBackend]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StubLibrary:
    return StubLibrary(build(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def stub(library: StubLibrary) -> StubLibrary:
    library.state.reset()
    library.library.make_current(1040)
    return library


@pytest.fixture
def make_backend(stub: StubLibrary, tmp_path: Path) -> MakeBackend:
    """A backend on the stub, with a container of these targets whose modules say what they are."""

    def make(
        targets: tuple[str, ...] = ("sm_80", "sm_86", "sm_90", "sm_120"), gpus: int = 1, overlap: bool = True
    ) -> CudaBackend:
        path = tmp_path / "kernels.wk"
        modules = {
            (family.name, target): lzma.compress(f"{family.name} {target}".encode())
            for family in FAMILIES
            for target in targets
        }
        container.write(path, "12.9", {family.name: source_of(family).digest for family in FAMILIES}, modules)
        return CudaBackend(
            lambda: Driver.load(str(stub.path)),
            lambda: StubTorch(gpus),
            lambda: CodeSource(path, compilers=list, families=FAMILIES),
            overlap=overlap,
        )

    return make


@pytest.mark.parametrize("is_limited", [False, True])
def test_a_display_gpu_limits_the_time_of_a_kernel(
    is_limited: bool, stub: StubLibrary, make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.state.time_limit = int(is_limited)
    monkeypatch.setattr(gpu_check, "cuda_backend", make_backend())
    assert has_time_limit(GPU) is is_limited
    assert not has_time_limit(torch.device("cpu"))


def test_nothing_is_loaded_before_a_kernel_is_asked_for(stub: StubLibrary, make_backend: MakeBackend) -> None:
    backend = make_backend()
    properties = backend.properties(GPU)
    assert properties == DeviceProperties(89, 30, 99 * 1024, has_time_limit=False)
    assert backend.gpus()[0].code == {"first": "sm_86 from the container", "second": "sm_86 from the container"}
    # A context takes memory of the GPU.
    assert (stub.state.loads, stub.state.contexts) == (0, 0)


def test_a_family_is_loaded_once_and_alone(stub: StubLibrary, make_backend: MakeBackend) -> None:
    backend = make_backend()
    for name in ("one", "two", "one"):
        backend.resolve(GPU, "first", name, 0, False)
    assert (stub.state.loads, stub.state.image) == (1, b"first sm_86")
    backend.resolve(GPU, "second", "three", 0, False)
    assert (stub.state.loads, stub.state.image) == (2, b"second sm_86")


def test_gpus_of_one_kind_share_a_library_and_others_get_their_own(
    stub: StubLibrary, make_backend: MakeBackend
) -> None:
    stub.state.capability[:3] = (89, 89, 120)
    backend = make_backend(gpus=3)
    backend.resolve(GPU, "first", "one", 0, False)
    backend.resolve(OTHER_GPU, "first", "one", 0, False)
    assert stub.state.loads == 1
    backend.resolve(torch.device("cuda", 2), "first", "one", 0, False)
    assert (stub.state.loads, stub.state.image) == (2, b"first sm_120")


def test_shared_memory_is_allowed_where_it_exceeds_the_default(stub: StubLibrary, make_backend: MakeBackend) -> None:
    backend = make_backend()
    backend.resolve(GPU, "first", "one", 48 * 1024, False)
    assert stub.state.shared_bytes_allowed == 0
    backend.resolve(GPU, "first", "one", 64 * 1024, False)
    assert stub.state.shared_bytes_allowed == 64 * 1024
    with pytest.raises(UnsupportedByGpu, match=r"needs 102400 bytes of shared memory, and a block on Stub GPU has"):
        backend.resolve(GPU, "first", "one", 100 * 1024, False)


def test_a_launch_brings_everything_intact(stub: StubLibrary, make_backend: MakeBackend) -> None:
    launch = make_backend().resolve(GPU, "first", "rms_norm_f32", 0, False)
    parameters = struct.pack("<2Qqi2f4x", 0x7F00_1234_5678, 0, 2**33, -7, 1e-5, 0.5)
    stub.state.parameter_bytes = len(parameters)
    launch((3, 2, 1), 256, 1024, parameters)
    state = stub.state
    assert (list(state.grid), list(state.threads), state.shared_bytes) == ([3, 2, 1], [256, 1, 1], 1024)
    assert bytes(state.parameters[: len(parameters)]) == parameters
    assert (state.stream, state.context, stub.launched()) == (7000, 1040, "rms_norm_f32")


@pytest.mark.parametrize(
    ("capability", "version", "overlaps"), [(89, 12090, 0), (90, 12090, 1), (90, 12020, 0), (120, 12090, 1)]
)
def test_launches_overlap_where_code_and_driver_can(
    stub: StubLibrary, make_backend: MakeBackend, capability: int, version: int, overlaps: int
) -> None:
    stub.state.capability[0], stub.state.version = capability, version
    for declared, overlap in ((True, True), (False, True), (True, False)):
        launch = make_backend(overlap=overlap).resolve(GPU, "first", "one", 0, declared)
        launch((5, 1, 1), 32, 0, b"")
        assert stub.state.overlaps == (overlaps if declared and overlap else 0)
        assert (list(stub.state.grid), stub.state.stream) == ([5, 1, 1], 7000)


def test_code_of_an_older_gpu_does_not_overlap_on_a_newer_one(
    stub: StubLibrary, make_backend: MakeBackend, tmp_path: Path
) -> None:
    stub.state.capability[0] = 90
    make_backend(("sm_80", "compute_80"))
    backend = CudaBackend(
        lambda: Driver.load(str(stub.path)),
        StubTorch,
        lambda: CodeSource(tmp_path / "kernels.wk", target="compute_80", compilers=list, families=FAMILIES),
    )
    backend.resolve(GPU, "first", "one", 0, True)((1, 1, 1), 32, 0, b"")
    assert (stub.state.image, stub.state.overlaps) == (b"first compute_80", 0)


def test_a_launch_goes_to_the_gpu_of_its_tensors(stub: StubLibrary, make_backend: MakeBackend) -> None:
    launch = make_backend(gpus=2).resolve(OTHER_GPU, "first", "one", 0, False)
    depth = stub.library.context_depth()
    launch((1, 1, 1), 32, 0, b"")
    assert (stub.state.context, stub.state.stream, stub.library.context_depth()) == (1041, 7001, depth)


def test_a_thread_that_has_not_used_the_gpu_can_launch(stub: StubLibrary, make_backend: MakeBackend) -> None:
    launch = make_backend().resolve(GPU, "first", "one", 0, False)
    thread = threading.Thread(target=launch, args=((1, 1, 1), 32, 0, b""))
    thread.start()
    thread.join()
    assert (stub.state.launches, stub.state.context) == (1, 1040)


def test_a_failed_launch_names_the_kernel_and_its_shape(stub: StubLibrary, make_backend: MakeBackend) -> None:
    launch = make_backend().resolve(GPU, "first", "one", 0, False)
    stub.state.launch_result = 700
    with pytest.raises(DriverError, match=r"cannot launch kernel one on Stub GPU \(grid \(4, 1, 1\), 32 threads"):
        launch((4, 1, 1), 32, 0, b"")


def test_threads_side_by_side_load_once(stub: StubLibrary, make_backend: MakeBackend) -> None:
    backend = make_backend()
    stub.state.load_milliseconds = 30
    start = threading.Barrier(4)
    launches: list[object] = []

    def resolve() -> None:
        start.wait()
        launches.append(backend.resolve(GPU, "first", "one", 0, False))

    threads = [threading.Thread(target=resolve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(launches), stub.state.loads, stub.state.contexts) == (4, 1, 1)


def test_code_can_be_loaded_while_a_graph_is_captured(stub: StubLibrary, make_backend: MakeBackend) -> None:
    stub.state.capturing = 1
    backend = make_backend()
    backend.resolve(GPU, "first", "one", 0, False)
    with pytest.raises(DriverError, match="warmup before the graph capture"):
        backend._driver.load_library(b"", "code outside the backend")


def test_a_kernel_that_the_code_lacks(stub: StubLibrary, make_backend: MakeBackend) -> None:
    stub.state.missing_kernel = b"rms_norm_bf16"
    with pytest.raises(UnsupportedByGpu, match=r"kernel rms_norm_bf16 does not exist in the code for sm_86 .* dtype"):
        make_backend().resolve(GPU, "first", "rms_norm_bf16", 0, False)


def test_a_driver_too_old_for_the_gpus_code(stub: StubLibrary, make_backend: MakeBackend) -> None:
    stub.state.capability[0], stub.state.version = 120, 12040
    with pytest.raises(DriverTooOld, match=r"for sm_120 .* has CUDA 12.4, and CUDA 12.8 \(driver R570\) or newer"):
        make_backend().resolve(GPU, "first", "one", 0, False)


def test_code_that_the_driver_refuses(stub: StubLibrary, make_backend: MakeBackend) -> None:
    stub.state.load_result = 209
    with pytest.raises(NoKernel, match=r"Stub GPU \(compute capability 8.9\) cannot run kernel family first for sm_86"):
        make_backend().resolve(GPU, "first", "one", 0, False)


def test_an_unknown_gpu_without_a_compiler(stub: StubLibrary, make_backend: MakeBackend) -> None:
    stub.state.capability[0] = 130
    with pytest.raises(NoKernel) as caught:
        make_backend().resolve(GPU, "first", "one", 0, False)
    assert str(caught.value) == (
        "no code of kernel family first for Stub GPU (sm_130): the container has sm_120, sm_80, sm_86, sm_90; there "
        "is no NVRTC beside torch or on the search path of the system. Install a newer wllm-kernels, or a CUDA build "
        "of torch, which brings NVRTC"
    )
