"""The loader on a real GPU: threads, streams, graphs and several GPUs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import wllm_kernels
from wllm_kernels import dispatch, launch_count, reference
from wllm_kernels.compiler.families import FAMILIES, runs_on
from wllm_kernels.device.backend import CudaBackend
from wllm_kernels.device.kernel import Kernel, backends

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU"),
]


def operands(device: str = "cuda") -> tuple[Tensor, Tensor]:
    return torch.randn(5, 128, device=device), torch.randn(128, device=device)


def norm(x: Tensor, weight: Tensor, out: Tensor) -> None:
    dispatch.rms_norm(x, weight, 1e-5, None, 0.0, out)


def expected(x: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(x)
    reference.rms_norm(x, weight, 1e-5, None, 0.0, out)
    return out


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A loader of this test's own."""
    monkeypatch.setitem(backends._by_type, "cuda", CudaBackend())
    forget_kernels()
    yield
    forget_kernels()


def forget_kernels() -> None:
    for kernel in Kernel.all:
        kernel.forget()


@pytest.mark.usefixtures("nothing_loaded")
def test_every_kernel_loads() -> None:
    targets = {family.name: family.targets for family in FAMILIES}
    gpu = backends[torch.device("cuda")].properties(torch.device("cuda"))
    fitting = [kernel for kernel in Kernel.all if kernel.shared_bytes <= gpu.max_shared_bytes]
    assert wllm_kernels.warmup("cuda") == sum(runs_on(targets[kernel.family], gpu.capability) for kernel in fitting)


def test_the_first_use_in_a_new_thread() -> None:
    x, weight = operands()
    out = torch.empty_like(x)
    torch.cuda.synchronize()
    thread = threading.Thread(target=norm, args=(x, weight, out))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, expected(x, weight))


def test_a_launch_goes_to_the_current_stream() -> None:
    x, weight = operands()
    out, stream = torch.zeros_like(x), torch.cuda.Stream()
    event = torch.cuda.Event()
    norm(x, weight, out.clone())
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        norm(x, weight, out)
        event.record()
    # On another stream it would be done by now.
    unfinished = not event.query()
    torch.cuda.default_stream().synchronize()
    seen = out.clone()
    torch.cuda.synchronize()
    assert unfinished and not seen.any()
    torch.testing.assert_close(out, expected(x, weight))


@pytest.mark.usefixtures("nothing_loaded")
def test_a_kernel_that_is_loaded_during_capture() -> None:
    x, weight = operands()
    out, graph = torch.zeros_like(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        norm(x, weight, out)
    before = launch_count()
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, expected(x, weight))
    assert launch_count() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_gpu_that_is_not_the_current_one() -> None:
    x, weight = operands("cuda:1")
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(wllm_kernels.rms_norm(x, weight, 1e-5), expected(x, weight))
    assert torch.cuda.current_device() == 0
