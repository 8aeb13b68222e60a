"""Closing the server's console ends it in order: its clients are told, and its engine ends with it."""

from __future__ import annotations

import subprocess
from time import perf_counter

import pytest
from windows.wine_server import WINE, WineServer, begun, has_ended_in_order

pytestmark = pytest.mark.full

# As the system closes a console: by a thread in each of its processes, here in that which has the server's window.
CLOSE = """
import ctypes
from ctypes import byref, c_size_t, c_uint32, c_void_p
user, kernel = ctypes.WinDLL("user32"), ctypes.WinDLL("kernelbase")
user.FindWindowW.restype = kernel.OpenProcess.restype = kernel.CreateRemoteThread.restype = c_void_p
user.GetWindowThreadProcessId.argtypes = c_void_p, c_void_p
kernel.CreateRemoteThread.argtypes = c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_uint32, c_void_p
number = c_uint32()
assert user.GetWindowThreadProcessId(user.FindWindowW("STATIC", "wLLM"), byref(number))
process = kernel.OpenProcess(0x1F0FFF, 0, number)
routine = ctypes.cast(kernel.CtrlRoutine, c_void_p)  # at the same place in every process
assert process and kernel.CreateRemoteThread(process, None, 0, routine, 2, 0, None)
"""


def test_a_closed_console() -> None:
    with WineServer("--port", "0") as running:
        events = begun(running.wait_ready().client())
        close = [str(WINE / "wine-python"), "-c", CLOSE]
        subprocess.run(close, stdin=subprocess.DEVNULL, check=True, timeout=60)
        began = perf_counter()
        has_ended_in_order(running, events, began)
