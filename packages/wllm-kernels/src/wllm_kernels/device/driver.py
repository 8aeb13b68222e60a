"""The CUDA driver API through ctypes: the few calls that load and launch kernels, with named errors.

`nvcuda.dll` and `libcuda.so.1` come with the NVIDIA driver, so nothing is linked and nothing is loaded before
`Driver.load`. `ctypes.CDLL` serves both systems (64-bit Windows has one calling convention) and releases the GIL during
a call: a launch waits when the GPU's queue is full, and the rest of the process must go on.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from typing import Any

from wllm_kernels.errors import DriverError, DriverTooOld, NoDriver

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MINIMUM_VERSION = 12000  # the first with library handles
OVERLAP_VERSION = 12030  # the first that keeps overlapping launches when it captures a graph

NO_BINARY_FOR_GPU, INVALID_CONTEXT, NOT_FOUND = 209, 201, 500
_RELAXED_CAPTURE = 2
_MAX_DYNAMIC_SHARED_BYTES, _NUM_REGISTERS = 8, 4  # attributes of a function
_DEFAULT_SHARED_BYTES = 48 * 1024

# Attributes of a device.
MULTIPROCESSORS, TIME_LIMIT, MAJOR, MINOR, MAX_SHARED_BYTES = 16, 17, 75, 76, 97

# The release of the driver that brought a CUDA version: what a user has to install.
_RELEASES = {12000: "R525", 12080: "R570", 13000: "R580"}

# CUlaunchConfig: grid, threads of a block and bytes of shared memory; stream, attributes and their number.
pack_launch = struct.Struct("<7I4x2QI4x").pack
# CUlaunchAttribute: its number, and the first of the 64 bytes of its value.
_ATTRIBUTE = struct.Struct("<I4xi60x")
_PROGRAMMATIC_STREAM_SERIALIZATION = 6

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuLibraryLoadData": (POINTER(c_void_p), c_char_p, c_void_p, c_void_p, c_uint, c_void_p, c_void_p, c_uint),
    "cuLibraryGetKernel": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuKernelGetFunction": (POINTER(c_void_p), c_void_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (c_char_p, c_void_p, c_void_p, c_void_p),
}

_FIXES = {
    2: "free GPU memory: end other programs or give this one less",
    200: "the machine code is damaged; install wllm-kernels anew",
    700: "the process can use the GPU no more; restart it, and report what it ran with CUDA_LAUNCH_BLOCKING=1 set",
    702: "Windows resets a display GPU after 2 s in one kernel; process fewer tokens in one step",
    719: "the process can use the GPU no more; restart it, and report what it ran with CUDA_LAUNCH_BLOCKING=1 set",
    900: "call wllm_kernels.warmup before the graph capture",
}


def version_text(version: int) -> str:
    """A driver version as people know it, with the driver release that brought it: `CUDA 12.8 (driver R570)`."""
    text = f"CUDA {version // 1000}.{version % 1000 // 10}"
    return f"{text} (driver {_RELEASES[version]})" if version in _RELEASES else text


class Driver:
    """The driver's library, initialised. Thread-safe: every method is one call, or calls on the thread's own state."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, argument_types in _SIGNATURES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise DriverTooOld(
                    f"the NVIDIA driver has no function {name}; wllm-kernels needs {version_text(MINIMUM_VERSION)} "
                    "or newer: update the driver"
                ) from None
            function.argtypes, function.restype = argument_types, c_int
        self._library = library
        result = library.cuInit(0)
        if result:
            raise NoDriver(
                f"the NVIDIA driver does not start: cuInit returned {self._name(result)}; check that nvidia-smi "
                "lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it"
            )
        version = c_int()
        self.check(library.cuDriverGetVersion(byref(version)), "ask the driver for its version")
        self.version = version.value
        if self.version < MINIMUM_VERSION:
            raise DriverTooOld(
                f"the NVIDIA driver is too old: it has {version_text(self.version)}, and wllm-kernels needs "
                f"{version_text(MINIMUM_VERSION)} or newer: update the driver"
            )
        self.launch_kernel = library.cuLaunchKernelEx
        self._overlap = ctypes.create_string_buffer(_ATTRIBUTE.pack(_PROGRAMMATIC_STREAM_SERIALIZATION, 1))
        # Where the one attribute of overlapping launches lies, for `pack_launch`.
        self.overlap_attribute = ctypes.addressof(self._overlap)

    @classmethod
    def load(cls, name: str = LIBRARY) -> Driver:
        """Open the driver's library; raises `NoDriver` or `DriverTooOld`."""
        try:
            return cls(ctypes.CDLL(name))
        except OSError as error:
            raise NoDriver(
                f"no NVIDIA driver: {name} cannot be loaded ({error}); install the driver of your GPU, "
                f"{version_text(MINIMUM_VERSION)} or newer"
            ) from None

    def check(self, result: int, what: str) -> None:
        """Raise `DriverError` unless `result` is success; `what` is the thing that was tried."""
        if result:
            fix = _FIXES.get(900 if 900 <= result < 910 else result, "see the driver's documentation of this error")
            raise DriverError(f"cannot {what}: the NVIDIA driver returned {self._name(result)}; {fix}", result)

    def _name(self, result: int) -> str:
        name = c_char_p()
        self._library.cuGetErrorName(result, byref(name))
        return f"{(name.value or b'an unknown error').decode()} ({result})"

    def device(self, index: int) -> int:
        """The driver's handle of GPU number `index` (as torch counts)."""
        handle = c_int()
        self.check(self._library.cuDeviceGet(byref(handle), index), f"open GPU {index}")
        return handle.value

    def device_name(self, device: int) -> str:
        """What the GPU is called."""
        name = ctypes.create_string_buffer(256)
        self.check(self._library.cuDeviceGetName(name, len(name), device), "ask for the name of a GPU")
        return name.value.decode(errors="replace")

    def device_attribute(self, device: int, attribute: int) -> int:
        """A number that describes the GPU."""
        value = c_int()
        self.check(self._library.cuDeviceGetAttribute(byref(value), attribute, device), "ask for a GPU's properties")
        return value.value

    def primary_context(self, device: int) -> int:
        """The context of a GPU that torch uses too; it is kept until the process ends."""
        context = c_void_p()
        self.check(self._library.cuDevicePrimaryCtxRetain(byref(context), device), "open the context of a GPU")
        return context.value or 0

    @contextmanager
    def current(self, context: int) -> Iterator[None]:
        """Make `context` this thread's current one for a while."""
        self.check(self._library.cuCtxPushCurrent_v2(context), "make the context of a GPU current")
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(byref(c_void_p()))

    @contextmanager
    def capture_tolerated(self) -> Iterator[None]:
        """Let this thread load code while it, or another one, captures a CUDA graph."""
        mode = c_int(_RELAXED_CAPTURE)
        self.check(self._library.cuThreadExchangeStreamCaptureMode(byref(mode)), "relax the rules of graph capture")
        try:
            yield
        finally:
            self._library.cuThreadExchangeStreamCaptureMode(byref(mode))

    def load_library(self, image: bytes, what: str) -> int:
        """Load a cubin, or PTX that the driver compiles; valid in every context."""
        library = c_void_p()
        result = self._library.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0)
        self.check(result, f"load {what}")
        return library.value or 0

    def function(self, library: int, name: str) -> int | None:
        """The kernel `name`, loaded into the current context, or None where the library has no such kernel."""
        kernel, function, registers = c_void_p(), c_void_p(), c_int()
        result = self._library.cuLibraryGetKernel(byref(kernel), library, name.encode())
        if result == NOT_FOUND:
            return None
        self.check(result, f"find kernel {name}")
        self.check(self._library.cuKernelGetFunction(byref(function), kernel), f"load kernel {name}")
        # The driver loads lazily; reading an attribute makes it load now.
        result = self._library.cuFuncGetAttribute(byref(registers), _NUM_REGISTERS, function)
        self.check(result, f"load kernel {name}")
        return function.value

    def allow_shared_bytes(self, function: int, size: int, name: str) -> None:
        """Allow launches of the kernel with `size` bytes of shared memory."""
        if size > _DEFAULT_SHARED_BYTES:
            result = self._library.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_BYTES, size)
            self.check(result, f"give kernel {name} {size} bytes of shared memory")
