"""The free memory of a GPU as NVML counts it: with what every program holds, which CUDA on Windows leaves out.

One question, asked through ctypes: NVML comes with the driver, and a dependency for three calls would have to be kept
apart from the older packages that install the same module name. Called once, before the weights are loaded.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import POINTER, byref, c_char_p, c_int, c_ulonglong, c_void_p
from typing import Any

LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "nvmlInit_v2": (),
    "nvmlDeviceGetHandleByUUID": (c_char_p, POINTER(c_void_p)),
    "nvmlDeviceGetMemoryInfo": (c_void_p, POINTER(_Memory)),
    "nvmlShutdown": (),
}


def free_memory(uuid: str) -> int | None:
    """Bytes free on the GPU of this UUID (without a prefix); None where NVML is missing or does not know the GPU."""
    try:
        return ask(ctypes.CDLL(LIBRARY), uuid)
    except OSError:
        return None


def ask(library: Any, uuid: str) -> int | None:
    """The same of a library that is open."""
    for name, argument_types in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = argument_types, c_int
    if library.nvmlInit_v2():
        return None
    handle, memory = c_void_p(), _Memory()
    try:
        # A slice of a GPU (MIG) has a UUID of its own, which this does not find: the figure of the whole is no help.
        if library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), byref(handle)):
            return None
        return None if library.nvmlDeviceGetMemoryInfo(handle, byref(memory)) else int(memory.free)
    finally:
        library.nvmlShutdown()
