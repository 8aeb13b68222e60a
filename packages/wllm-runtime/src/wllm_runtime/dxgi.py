"""A GPU's memory as Windows manages it (WDDM): what it grants this process, and what it keeps for it in host memory.

Windows gives each process a budget of the GPU's own memory, the local segment. What goes beyond the budget, or is in
the way of another program, it moves to the non-local segment, which is host memory, and no call fails. DXGI tells both
figures of this process. Asked through ctypes: a DXGI object is a pointer to a pointer to a table of functions.
"""

from __future__ import annotations

import ctypes
import sys
import uuid
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_uint64, c_void_p
from typing import Any

_FACTORY4 = uuid.UUID("1bc6ea02-ef36-464f-bf0c-21ca39e5168a").bytes_le
_ADAPTER3 = uuid.UUID("645967a4-1392-4310-a798-8053ce3e93fd").bytes_le
# Places in the tables: of every object, of an adapter, of a factory.
_RELEASE, _QUERY_VIDEO_MEMORY_INFO, _ENUM_ADAPTER_BY_LUID = 2, 14, 26
_LOCAL, _NON_LOCAL = 0, 1


class MemoryInfo(ctypes.Structure):
    """DXGI_QUERY_VIDEO_MEMORY_INFO, in bytes of one segment."""

    _fields_ = (
        ("budget", c_uint64),
        ("usage", c_uint64),
        ("available_for_reservation", c_uint64),
        ("reservation", c_uint64),
    )


class Adapter:
    """A GPU in DXGI; `node` is its number among GPUs that are linked to one adapter. Unusable after `close`."""

    def __init__(self, pointer: c_void_p, node: int) -> None:
        self._pointer, self._node = pointer, node
        self._query = _method(pointer, _QUERY_VIDEO_MEMORY_INFO, c_uint, c_int, POINTER(MemoryInfo))

    def free_memory(self) -> int | None:
        """Bytes of the GPU's own memory that this process may take beyond what it holds; None for no figure."""
        info = self._info(_LOCAL)
        return None if info is None else max(0, info.budget - info.usage)

    def own_memory(self) -> int | None:
        """Bytes of the GPU's own memory that this process holds; None for no figure."""
        info = self._info(_LOCAL)
        return None if info is None else int(info.usage)

    def host_memory(self) -> int | None:
        """Bytes of host memory that this process holds for the GPU: pinned, or moved there; None for no figure."""
        info = self._info(_NON_LOCAL)
        return None if info is None else int(info.usage)

    def close(self) -> None:
        """Give the object back."""
        _release(self._pointer)

    def _info(self, segment: int) -> MemoryInfo | None:
        info = MemoryInfo()
        return None if self._query(self._pointer, self._node, segment, byref(info)) < 0 else info


def open_adapter(index: int) -> Adapter | None:
    """The adapter of GPU number `index` (as torch counts); None where Windows does not manage its memory."""
    if sys.platform != "win32":
        return None
    try:
        return find_adapter(ctypes.CDLL("nvcuda.dll"), ctypes.CDLL("dxgi.dll"), index)
    except OSError:
        return None


def find_adapter(driver: Any, dxgi: Any, index: int) -> Adapter | None:
    """The same of libraries that are open. The LUID, 8 bytes that last until reboot, is what CUDA and DXGI agree on."""
    device, luid, nodes = c_int(), c_uint64(), c_uint()
    if driver.cuInit(0) or driver.cuDeviceGet(byref(device), index):
        return None
    # Fails for a GPU under TCC or MCDM, which is none for DXGI.
    if driver.cuDeviceGetLuid(byref(luid), byref(nodes), device):
        return None
    factory, adapter = c_void_p(), c_void_p()
    if dxgi.CreateDXGIFactory1(_FACTORY4, byref(factory)) < 0:
        return None
    try:
        by_luid = _method(factory, _ENUM_ADAPTER_BY_LUID, c_uint64, c_char_p, POINTER(c_void_p))
        if by_luid(factory, luid, _ADAPTER3, byref(adapter)) < 0:
            return None
    finally:
        _release(factory)
    # One bit is set: the number of the GPU.
    return Adapter(adapter, max(nodes.value.bit_length() - 1, 0))


def _method(this: c_void_p, place: int, *argument_types: Any) -> Callable[..., int]:
    table = ctypes.cast(this, POINTER(POINTER(c_void_p))).contents
    # 64-bit Windows has one calling convention; an HRESULT has 32 bits, below 0 for a failure.
    return ctypes.CFUNCTYPE(c_int, c_void_p, *argument_types)(table[place] or 0)


def _release(this: c_void_p) -> None:
    _method(this, _RELEASE)(this)
