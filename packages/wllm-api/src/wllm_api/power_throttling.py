"""Windows' power throttling (EcoQoS), which slows down what has no window in front: a server, of all things."""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_uint32, c_void_p, sizeof
from typing import Any

_POWER_THROTTLING = 4  # of PROCESS_INFORMATION_CLASS
_VERSION, _EXECUTION_SPEED = 1, 1


class _State(ctypes.Structure):
    _fields_ = (("version", c_uint32), ("control_mask", c_uint32), ("state_mask", c_uint32))


def refuse_throttling() -> None:
    """Keep Windows from running this process slowly while it is in the background; does nothing elsewhere."""
    if sys.platform == "win32":
        # False is no problem: a Windows that does not know the question (before 10, 1709) does not throttle either.
        ask(ctypes.WinDLL("kernel32"))


def ask(kernel: Any) -> bool:
    """The same of a library that is open; whether Windows has agreed."""
    kernel.GetCurrentProcess.restype = c_void_p
    kernel.SetProcessInformation.argtypes = (c_void_p, c_int, c_void_p, c_uint32)
    # What the first mask names is for the process to decide, and the second says off.
    state = _State(_VERSION, _EXECUTION_SPEED, 0)
    process = kernel.GetCurrentProcess()
    return bool(kernel.SetProcessInformation(process, _POWER_THROTTLING, byref(state), sizeof(state)))
