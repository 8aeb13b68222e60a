"""`capabilities` and `warmup`, on this machine and with a stub of the driver; the choice of an implementation."""

from __future__ import annotations

import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from stub_driver import AVAILABLE, StubLibrary, StubTorch, build

import wllm_kernels
from wllm_kernels import InvalidArgument, NoCudaTorch, implementations, launch_count
from wllm_kernels.compiler import container
from wllm_kernels.compiler.families import FAMILIES, best_target
from wllm_kernels.compiler.sources import source_of
from wllm_kernels.device.backend import CudaBackend
from wllm_kernels.device.code import CodeSource
from wllm_kernels.device.driver import Driver
from wllm_kernels.device.kernel import Kernel, backends

needs_compiler = pytest.mark.skipif(not AVAILABLE, reason="the stub driver needs a C compiler (gcc)")
needs_cpu_torch = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubLibrary]:
    """CUDA is the stub driver, with a container of all families."""
    library = StubLibrary(build(tmp_path))
    library.state.reset()
    path = tmp_path / "kernels.wk"
    names = [(family.name, f"sm_{target}") for family in FAMILIES for target in family.targets]
    code = lzma.compress(b"code")
    container.write(
        path,
        "12.9",
        {family.name: source_of(family).digest for family in FAMILIES},
        dict.fromkeys(names, code),
    )
    backend = CudaBackend(
        lambda: Driver.load(str(library.path)), StubTorch, lambda: CodeSource(path, compilers=lambda: ())
    )
    monkeypatch.setitem(backends._by_type, "cuda", backend)
    monkeypatch.setattr(implementations, "cuda_backend", backend)
    yield library
    for kernel in Kernel.all:
        kernel.forget()


def for_this_gpu() -> list[Kernel]:
    """The kernels of all families that have code for the stub's GPU, where they fit its shared memory."""
    targets = {family.name: family.targets for family in FAMILIES}
    fitting = [kernel for kernel in Kernel.all if kernel.shared_bytes <= 99 * 1024]
    return [kernel for kernel in fitting if best_target(89, targets[kernel.family]) is not None]


def test_every_op_is_named_by_device() -> None:
    found = wllm_kernels.capabilities()
    assert set(found.implementations) == ({"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"})
    assert set(found.implementations["cpu"]) == {op.name for op in wllm_kernels.dispatch.OPS}
    assert found.has_device_code == torch.cuda.is_available()


def test_every_op_has_device_code() -> None:
    assert [op.name for op in wllm_kernels.dispatch.OPS if op.implementation_names["cuda"] != "device"] == []


@needs_cpu_torch
def test_without_cuda_the_reason_is_told_and_warmup_raises_it() -> None:
    found = wllm_kernels.capabilities()
    assert found.gpus == () and found.problem is not None and "built without CUDA; install" in found.problem
    with pytest.raises(NoCudaTorch, match="built without CUDA"):
        wllm_kernels.warmup("cuda")
    assert wllm_kernels.warmup("cpu") == 0


@needs_compiler
def test_a_gpu_is_described_without_loading_anything(stub: StubLibrary) -> None:
    (gpu,) = wllm_kernels.capabilities().gpus
    assert (gpu.index, gpu.name, gpu.capability, gpu.driver) == (0, "Stub GPU", "8.9", "CUDA 12.9")
    assert gpu.code["norm"] == "sm_86 from the container"
    assert stub.state.loads == 0


@needs_compiler
def test_warmup_loads_every_kernel_so_that_no_launch_does(stub: StubLibrary) -> None:
    kernels = for_this_gpu()
    assert wllm_kernels.warmup("cuda:0") == len(kernels) == stub.state.functions
    assert stub.state.loads == len({kernel.family for kernel in kernels})
    for kernel in kernels:
        kernel.resolve(torch.device("cuda", 0))
    assert (len(kernels), stub.state.launches) == (stub.state.functions, 0)


@needs_compiler
def test_warmup_of_some_families(stub: StubLibrary) -> None:
    count = wllm_kernels.warmup("cuda:0", ["nor?"])
    assert 0 < count == sum(kernel.family == "norm" for kernel in Kernel.all)
    assert stub.state.loads == 1
    with pytest.raises(InvalidArgument, match=r"no kernel family is called 'nrm'; the families are .*norm"):
        wllm_kernels.warmup("cuda:0", ["nrm"])
    assert wllm_kernels.warmup("cuda:0", "nor?") == count


@needs_compiler
def test_warmup_leaves_out_what_the_gpu_lacks(stub: StubLibrary) -> None:
    stub.state.missing_kernel = b"rms_norm_bf16"
    assert wllm_kernels.warmup("cuda:0") == sum(kernel.name != "rms_norm_bf16" for kernel in for_this_gpu())


@needs_compiler
def test_launches_are_counted(stub: StubLibrary) -> None:
    before = launch_count()
    kernel = Kernel("norm", "rms_norm_f32", "Qi", threads=32)
    try:
        kernel.launch(torch.device("cuda", 0), (1, 1, 1), 2**40, 3)
        assert (launch_count() - before, kernel.launches, stub.state.launches) == (1, 1, 1)
    finally:
        Kernel.all.remove(kernel)


@pytest.mark.parametrize(("value", "implementation"), [("", "device"), ("reference", "reference")])
def test_a_variable_chooses_the_reference(value: str, implementation: str) -> None:
    assert wllm_kernels.dispatch.chosen_implementation(value) == implementation


def test_another_value_of_the_variable_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="WLLM_KERNELS='refrence' is unknown; set it to reference"):
        wllm_kernels.dispatch.chosen_implementation("refrence")


def test_the_forced_reference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WLLM_KERNELS", "reference")
    code = (
        "import wllm_kernels as w;"
        "print({op.implementation_names['cuda'] for op in w.dispatch.OPS}, w.capabilities().problem, w.warmup('cuda'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", timeout=300)
    assert done.stdout.strip() == "{'reference'} WLLM_KERNELS=reference is set; unset it to run device code 0", done
