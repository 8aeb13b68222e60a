"""The end of a console on Windows: its window is closed.

Windows tells a handler, in a thread that it starts in this process, and ends the process as soon as the handler has
returned, or after five seconds. Python's own handler returns at once: nobody would be told anything. So the one here
stays where it is, and the process ends by itself. The processes of a console are told one after the other, so the
engine process leaves it to Python's handler and ends at once: the server would have to wait for it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int, c_uint
from typing import Any

# The last two come without user32.dll only; else see `hidden_window`.
_CLOSE, _LOGOFF, _SHUTDOWN = 2, 5, 6
# 64-bit Windows has one calling convention.
_Handler = ctypes.CFUNCTYPE(c_int, c_uint)


@contextmanager
def on_console_close(begin: Callable[[], None]) -> Iterator[None]:
    """Within the block, call `begin()`, in a thread of its own, when the console ends; does nothing elsewhere."""
    if sys.platform != "win32":
        yield
        return
    with handler_of(ctypes.WinDLL("kernel32"), begin):
        yield


@contextmanager
def handler_of(kernel: Any, begin: Callable[[], None]) -> Iterator[None]:
    """The same of a library that is open."""
    told = threading.Event()

    def handle(event: int) -> int:
        if event not in (_CLOSE, _LOGOFF, _SHUTDOWN):
            return 0  # Ctrl+C and Ctrl+Break: the next handler's, which is Python's
        told.set()
        begin()
        stay()
        return 1

    handler = _Handler(handle)
    # The last handler that was set is the first that is asked.
    kernel.SetConsoleCtrlHandler(handler, 1)
    try:
        yield
    finally:
        # Windows holds its list of handlers while one of them runs: this would wait for the one that stays.
        if not told.is_set():
            kernel.SetConsoleCtrlHandler(handler, 0)


def stay() -> None:
    """Wait for the end of the process."""
    threading.Event().wait()
