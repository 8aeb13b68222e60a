"""The end of a session on Windows: the user logs off, or the computer shuts down.

A console's handler hears of it only in a process without user32.dll, and Python's ctypes loads that. All other
processes are told through their windows, and those without one are ended as they run. So a thread has a window that
nobody sees. As for a console (`console_close`), Windows ends the process when the window has answered, or after five
seconds.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_ssize_t, c_uint, c_uint32, c_uint64, c_void_p, c_wchar_p
from typing import Any

from wllm_api.console_close import stay

_WM_QUIT, _WM_ENDSESSION = 0x12, 0x16
_WINDOW_PROCEDURE = -4
_Procedure = ctypes.CFUNCTYPE(c_ssize_t, c_void_p, c_uint, c_size_t, c_ssize_t)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "CreateWindowExW": (c_void_p, (c_uint32, c_wchar_p, c_wchar_p, c_uint32, *(c_int,) * 4, *(c_void_p,) * 4)),
    "SetWindowLongPtrW": (c_void_p, (c_void_p, c_int, _Procedure)),
    "DefWindowProcW": (c_ssize_t, (c_void_p, c_uint, c_size_t, c_ssize_t)),
    "GetMessageW": (c_int, (c_void_p, c_void_p, c_uint, c_uint)),
    "DispatchMessageW": (c_ssize_t, (c_void_p,)),
    "PostThreadMessageW": (c_int, (c_uint32, c_uint, c_size_t, c_ssize_t)),
    "DestroyWindow": (c_int, (c_void_p,)),
}


@contextmanager
def on_session_end(begin: Callable[[], None]) -> Iterator[None]:
    """Within the block, call `begin()`, in a thread of its own, when the session ends; does nothing elsewhere."""
    if sys.platform != "win32":
        yield
        return
    with window_of(ctypes.WinDLL("user32"), begin):
        yield


@contextmanager
def window_of(user: Any, begin: Callable[[], None]) -> Iterator[None]:
    """The same of a library that is open."""
    for name, (result_type, argument_types) in _SIGNATURES.items():
        function = getattr(user, name)
        function.restype, function.argtypes = result_type, argument_types
    over = threading.Event()
    # A daemon, which is not waited for: at the session's end it stays where it is.
    thread = threading.Thread(target=_run, args=(user, begin, over), name="wllm-session-window", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()  # first: a thread that takes no messages yet will see it
        user.PostThreadMessageW(thread.native_id, _WM_QUIT, 0, 0)


def _run(user: Any, begin: Callable[[], None], over: threading.Event) -> None:
    def procedure(window: int, message: int, word: int, value: int) -> int:
        if message == _WM_ENDSESSION and word:  # 0: another program has said no
            begin()
            stay()
        return int(user.DefWindowProcW(window, message, word, value))

    kept = _Procedure(procedure)
    # Of a class that is there already, and at the top: windows for messages alone are not told.
    window = user.CreateWindowExW(0, "STATIC", "wLLM", 0, 0, 0, 0, 0, None, None, None, None)
    if not window:
        return  # a session without a desktop
    user.SetWindowLongPtrW(window, _WINDOW_PROCEDURE, kept)
    message = (c_uint64 * 8)()  # a MSG, which has 48 bytes
    while not over.is_set() and user.GetMessageW(byref(message), None, 0, 0) > 0:
        user.DispatchMessageW(byref(message))
    user.DestroyWindow(window)
