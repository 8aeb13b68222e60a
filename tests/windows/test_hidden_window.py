"""The server's window is told of the session's end, so that it ends in order, and of the computer's waking up."""

from __future__ import annotations

import subprocess
from time import perf_counter

import pytest
from server.running_server import wait_until
from windows.wine_server import WINE, WineServer, begun, has_ended_in_order

pytestmark = pytest.mark.full

# From another process, as Windows sends it: to the window that `wllm serve` has.
WAKE_UP = """
import ctypes
user = ctypes.WinDLL("user32")
user.FindWindowW.restype = ctypes.c_void_p
user.SendMessageW.argtypes = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_ssize_t
window = user.FindWindowW("STATIC", "wLLM")
assert window and user.SendMessageW(window, 0x218, 0x12, 0) in (0, 1)
"""


def test_waking_up() -> None:
    with WineServer("--port", "0") as running:
        client = running.wait_ready().client()
        subprocess.run([str(WINE / "wine-python"), "-c", WAKE_UP], stdin=subprocess.DEVNULL, check=True, timeout=60)
        wait_until(lambda: "the computer has woken up" in running.text(), 10, "the server is told")
        name = client.models.list().data[0].id
        answer = client.completions.create(model=name, prompt="Once", max_tokens=3)
        assert answer.usage is not None and answer.usage.completion_tokens == 3
        assert "Restart in" not in running.text()


def test_logging_off() -> None:
    with WineServer("--port", "0") as running:
        events = begun(running.wait_ready().client())
        began = perf_counter()
        log_off = [str(WINE / "wine-run"), "wineboot", "--end-session"]
        subprocess.run(log_off, stdin=subprocess.DEVNULL, check=True, timeout=60)
        has_ended_in_order(running, events, began)
