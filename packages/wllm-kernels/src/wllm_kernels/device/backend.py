"""The backend of CUDA: loads kernel families through the driver and launches kernels on torch's current stream.

Nothing happens at import or construction: the driver, torch's CUDA state and the container are touched by the first
kernel. A family is loaded when one of its kernels is first asked for, once for all GPUs that run the same code.
Thread-safe: one lock for whatever loads, none for launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import byref, c_char_p
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from wllm_kernels.compiler.families import number_of
from wllm_kernels.device import driver as driver_api
from wllm_kernels.device.code import Code, CodeSource, capability_text, from_environment
from wllm_kernels.device.driver import Driver
from wllm_kernels.device.kernel import DeviceProperties, Grid
from wllm_kernels.errors import DriverError, DriverTooOld, NoCudaTorch, NoKernel, UnsupportedByGpu

# Of the first code that can wait for the previous kernel.
_OVERLAP_CAPABILITY = 90


class TorchCuda(Protocol):
    """What the backend asks of torch."""

    def check_build(self) -> None:
        """Raise `NoCudaTorch` if torch is built without CUDA."""

    def initialise(self, driver_version: int) -> None:
        """Start torch's CUDA state; raises `NoCudaTorch` if it sees no GPU, `DriverTooOld` if the driver is why."""

    def device_count(self) -> int:
        """GPUs that torch sees."""

    def current_device(self) -> int:
        """The calling thread's GPU."""

    def current_stream(self, index: int, /) -> int:
        """The handle of the calling thread's stream on a GPU."""


class _InstalledTorch:
    """The torch of this process. It has quick functions for the two questions of every launch."""

    def __init__(self) -> None:
        self.current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
        self.current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _current_stream)
        self.device_count: Callable[[], int] = torch.cuda.device_count

    def check_build(self) -> None:
        if torch.version.cuda is None:
            raise NoCudaTorch(
                f"torch {torch.__version__} is built without CUDA; install a CUDA build with the command that "
                "https://pytorch.org/get-started/locally shows for your system"
            )

    def initialise(self, driver_version: int) -> None:
        if not torch.cuda.is_available():
            built_for = str(torch.version.cuda)
            if driver_version // 1000 < int(built_for.partition(".")[0]):
                raise DriverTooOld(
                    f"torch {torch.__version__} is built for CUDA {built_for}, and the NVIDIA driver has "
                    f"{driver_api.version_text(driver_version)}: update the driver, or install an older CUDA build of "
                    "torch with the command that https://pytorch.org/get-started/locally shows"
                )
            raise NoCudaTorch(
                f"torch {torch.__version__} sees no GPU; check that nvidia-smi lists one, that CUDA_VISIBLE_DEVICES "
                f"does not hide it, and that its driver supports CUDA {torch.version.cuda}"
            )
        torch.cuda.init()  # type: ignore[no-untyped-call]


def _current_stream(index: int) -> int:
    return torch.cuda.current_stream(index).cuda_stream


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that torch sees. `code`: by kernel family, the target it runs and where that comes from."""

    index: int
    name: str
    capability: str
    driver: str
    code: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU as torch numbers it."""

    index: int
    name: str
    handle: int
    capability: int  # of the GPU itself; times ten
    properties: DeviceProperties


class CudaBackend:
    """Resolves kernels on all GPUs. The arguments are what tests and benchmarks replace."""

    def __init__(
        self,
        load_driver: Callable[[], Driver] = Driver.load,
        torch_cuda: Callable[[], TorchCuda] = _InstalledTorch,
        code_source: Callable[[], CodeSource] = from_environment,
        *,
        overlap: bool = True,
    ) -> None:
        """`overlap`: kernels that may begin before the one in front of them has ended do so."""
        self._overlap = overlap
        self._load_driver, self._load_torch, self._load_code = load_driver, torch_cuda, code_source
        self._lock = threading.RLock()
        self._gpus: dict[int, _Gpu] = {}
        self._contexts: dict[int, int] = {}
        self._libraries: dict[tuple[str, int], tuple[int, Code]] = {}
        self._shared_bytes: dict[int, int] = {}

    @cached_property
    def _torch(self) -> TorchCuda:
        found = self._load_torch()
        found.check_build()
        # Its absence is the better reason than a torch that sees no GPU.
        found.initialise(self._driver.version)
        return found

    @cached_property
    def _driver(self) -> Driver:
        return self._load_driver()

    @cached_property
    def _code(self) -> CodeSource:
        return self._load_code()

    def properties(self, device: torch.device) -> DeviceProperties:
        """What this GPU is; its capability is that of the code where WLLM_KERNELS_TARGET chooses the code."""
        return self._gpu(device).properties

    def resolve(self, device: torch.device, family: str, name: str, shared_bytes: int, overlaps: bool) -> Launch:
        """Load the kernel and allow it `shared_bytes` of shared memory.

        Raises `NoDeviceCode` with the reason, or `DriverError`.
        """
        gpu = self._gpu(device)
        if shared_bytes > gpu.properties.max_shared_bytes:
            raise UnsupportedByGpu(
                f"kernel {name} needs {shared_bytes} bytes of shared memory, and a block on {gpu.name} has at most "
                f"{gpu.properties.max_shared_bytes}; use a smaller head_dim or another dtype"
            )
        with self._lock:
            context = self._context(gpu)
            with self._driver.current(context), self._driver.capture_tolerated():
                function = self._function(gpu, family, name, shared_bytes)
                _, code = self._library(family, gpu)
        overlaps = overlaps and self._overlap and self._can_overlap(code)
        return Launch(self._driver, self._torch, gpu, context, name, function, overlaps)

    def gpus(self) -> list[Gpu]:
        """Every GPU that torch sees; loads no code. Raises `NoDeviceCode` where device code cannot run at all."""
        with self._lock:
            found = [self._gpu(torch.device("cuda", index)) for index in range(self._torch.device_count())]
        driver = driver_api.version_text(self._driver.version)
        return [
            Gpu(
                gpu.index,
                gpu.name,
                capability_text(gpu.capability),
                driver,
                self._code.preview(gpu.properties.capability),
            )
            for gpu in found
        ]

    def _gpu(self, device: torch.device) -> _Gpu:
        gpu = None if device.index is None else self._gpus.get(device.index)
        if gpu is None:
            with self._lock:
                torch_cuda = self._torch
                index = torch_cuda.current_device() if device.index is None else device.index
                gpu = self._gpus.setdefault(index, self._ask(index))
        return gpu

    def _ask(self, index: int) -> _Gpu:
        handle = self._driver.device(index)
        api = driver_api
        wanted = (api.MAJOR, api.MINOR, api.MULTIPROCESSORS, api.MAX_SHARED_BYTES, api.TIME_LIMIT)
        major, minor, processors, shared, limit = (self._driver.device_attribute(handle, number) for number in wanted)
        capability = 10 * major + minor
        runs = self._code.forced_capability or capability
        properties = DeviceProperties(runs, processors, shared, has_time_limit=bool(limit))
        return _Gpu(index, self._driver.device_name(handle), handle, capability, properties)

    def _context(self, gpu: _Gpu) -> int:
        """torch's context of a GPU. It takes memory there, so that only a GPU that runs kernels gets one."""
        if gpu.index not in self._contexts:
            self._contexts[gpu.index] = self._driver.primary_context(gpu.handle)
        return self._contexts[gpu.index]

    def _can_overlap(self, code: Code) -> bool:
        """Older code does not wait for the previous kernel, on whatever GPU it runs."""
        return number_of(code.target) >= _OVERLAP_CAPABILITY and self._driver.version >= driver_api.OVERLAP_VERSION

    def _function(self, gpu: _Gpu, family: str, name: str, shared_bytes: int) -> int:
        library, code = self._library(family, gpu)
        function = self._driver.function(library, name)
        if function is None:
            raise UnsupportedByGpu(
                f"kernel {name} does not exist in the code for {code.target} that {gpu.name} runs; bfloat16 needs a "
                "GPU of compute capability 8.0 or higher, FP8 one of 8.9: use another dtype"
            )
        if shared_bytes > self._shared_bytes.get(function, 0):
            self._driver.allow_shared_bytes(function, shared_bytes, name)
            self._shared_bytes[function] = shared_bytes
        return function

    def _library(self, family: str, gpu: _Gpu) -> tuple[int, Code]:
        key = (family, gpu.properties.capability)
        found = self._libraries.get(key)
        if found is None:
            code = self._code.find(family, gpu.properties.capability, gpu.name, self._driver.version)
            found = self._libraries[key] = self._load(code, family, gpu), code
        return found

    def _load(self, code: Code, family: str, gpu: _Gpu) -> int:
        what = f"kernel family {family} for {code.target} (from {code.origin}) on {gpu.name}"
        have, need = (driver_api.version_text(version) for version in (self._driver.version, code.driver_version))
        if self._driver.version < code.driver_version:
            raise DriverTooOld(
                f"the NVIDIA driver is too old to load {what}: it has {have}, and {need} or newer is needed: "
                "update the driver"
            )
        try:
            return self._driver.load_library(code.image, what)
        except DriverError as error:
            if error.result == driver_api.NO_BINARY_FOR_GPU:
                raise NoKernel(
                    f"{gpu.name} (compute capability {capability_text(gpu.capability)}) cannot run {what}; "
                    "unset WLLM_KERNELS_TARGET and WLLM_KERNELS_CONTAINER, or install wllm-kernels anew"
                ) from error
            raise


class Launch:
    """A kernel on one GPU, loaded. Calling it costs about 2 us of Python and enqueues the kernel, no more."""

    def __init__(
        self,
        driver: Driver,
        torch_cuda: TorchCuda,
        gpu: _Gpu,
        context: int,
        name: str,
        function: int,
        overlaps: bool,
    ) -> None:
        self._driver, self._gpu, self._context, self._name, self._function = driver, gpu, context, name, function
        self._launch, self._index = driver.launch_kernel, gpu.index
        self._attributes, self._num_attributes = (driver.overlap_attribute, 1) if overlaps else (0, 0)
        self._current_device, self._current_stream = torch_cuda.current_device, torch_cuda.current_stream
        self._one_gpu = torch_cuda.device_count() == 1

    def __call__(self, grid: Grid, threads: int, shared_bytes: int, parameters: bytes) -> None:
        """Enqueue it on torch's current stream of its GPU, whichever GPU is the thread's current one."""
        # The driver takes an array of pointers to parameters: one, to the struct inside the bytes. It copies the struct
        # during the call.
        index = self._index
        config = driver_api.pack_launch(
            *grid, threads, 1, 1, shared_bytes, self._current_stream(index), self._attributes, self._num_attributes
        )
        if self._one_gpu or self._current_device() == index:
            result = self._launch(config, self._function, byref(c_char_p(parameters)), None)
            if not result:
                return
            if result != driver_api.INVALID_CONTEXT:
                self._driver.check(result, self._describe(grid, threads, shared_bytes))
        # Another GPU is current, or, in a thread that has not used CUDA yet, none.
        with self._driver.current(self._context):
            result = self._launch(config, self._function, byref(c_char_p(parameters)), None)
        self._driver.check(result, self._describe(grid, threads, shared_bytes))

    def _describe(self, grid: Grid, threads: int, shared_bytes: int) -> str:
        return (
            f"launch kernel {self._name} on {self._gpu.name} (grid {grid}, {threads} threads, {shared_bytes} bytes of "
            "shared memory)"
        )
