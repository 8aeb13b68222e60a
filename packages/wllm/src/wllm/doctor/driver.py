"""The NVIDIA driver, asked through ctypes. `wllm_kernels` has more of it, but cannot be imported without torch.

Opens no context on a GPU, so it takes no memory there.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int
from dataclasses import dataclass

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MINIMUM_VERSION = 12000  # as in wllm_kernels.device.driver
_MAJOR, _MINOR = 75, 76
_NO_DEVICE = 100


@dataclass(frozen=True, slots=True)
class GpuOfDriver:
    """A GPU: its name and its compute capability."""

    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability[0]}.{self.capability[1]})"


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver's CUDA version (12080 is 12.8; 0 where it told none) and its GPUs, or why there are none.

    `loaded` is false where no driver is installed.
    """

    loaded: bool
    version: int = 0
    gpus: tuple[GpuOfDriver, ...] = ()
    problem: str = ""

    @property
    def cuda(self) -> str:
        """The version as people write it."""
        return f"{self.version // 1000}.{self.version % 1000 // 10}"


def ask_driver(name: str = LIBRARY) -> Driver:
    """What the driver says; never raises for a driver that is missing or does not start."""
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        return Driver(loaded=False, problem=f"{name} cannot be loaded ({error})")
    try:
        version = c_int()
        result = library.cuDriverGetVersion(byref(version))
        if result:
            return Driver(loaded=True, problem=f"cuDriverGetVersion returned {result}")
        result = library.cuInit(0)
        if result and result != _NO_DEVICE:
            return Driver(True, version.value, problem=f"it does not start: cuInit returned {result}")
        gpus = () if result else tuple(_gpus(library))
    except AttributeError as error:
        return Driver(loaded=True, problem=f"{name} lacks a function ({error})")
    return Driver(True, version.value, gpus, "" if gpus else "it finds no GPU")


def _gpus(library: ctypes.CDLL) -> list[GpuOfDriver]:
    count = c_int()
    library.cuDeviceGetCount(byref(count))
    return [_gpu(library, index) for index in range(count.value)]


def _gpu(library: ctypes.CDLL, index: int) -> GpuOfDriver:
    handle, major, minor = c_int(), c_int(), c_int()
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGet(byref(handle), index)
    library.cuDeviceGetName(name, len(name), handle)
    library.cuDeviceGetAttribute(byref(major), _MAJOR, handle)
    library.cuDeviceGetAttribute(byref(minor), _MINOR, handle)
    return GpuOfDriver(name.value.decode(errors="replace"), (major.value, minor.value))
