"""Closing the server's console ends it in order: its clients are told, and its engine ends with it."""

from __future__ import annotations

import subprocess
from time import perf_counter

import openai
import pytest
from server.running_server import wait_until
from windows.wine_server import WINE, WineServer

pytestmark = [
    pytest.mark.skipif(not (WINE / "wine-run").is_file(), reason="needs `nox -s windows`, which sets up Wine"),
    pytest.mark.full,
]

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
        client = running.wait_ready().client()
        name = client.models.list().data[0].id
        events = client.completions.create(model=name, prompt="Once", max_tokens=2000, stream=True)
        next(events)
        close = [str(WINE / "wine-python"), "-c", CLOSE]
        subprocess.run(close, stdin=subprocess.DEVNULL, check=True, timeout=60)
        began = perf_counter()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(events)
        assert running.process.wait(20) == 0
        # Windows ends what takes longer than five.
        assert perf_counter() - began < 5
        assert "the console or the session ends" in running.text()
        wait_until(lambda: not running.pythons(), 5, "the engine ended too")
