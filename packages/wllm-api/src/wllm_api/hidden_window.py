"""A window that nobody sees: Windows tells programs through theirs that the session ends or the computer wakes up.

The session ends when the user logs off or the computer shuts down. A console's handler hears of it only in a process
without user32.dll, and Python's ctypes loads that; a process without a window is ended as it runs. As for a console
(`console_close`), Windows ends the process when the window has answered, or after five seconds.
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

_WM_QUIT, _WM_ENDSESSION, _WM_POWERBROADCAST = 0x12, 0x16, 0x218
_PBT_APMRESUMEAUTOMATIC = 0x12
_NOTIFY_WINDOW = 0
_WINDOW_PROCEDURE = -4
_Procedure = ctypes.CFUNCTYPE(c_ssize_t, c_void_p, c_uint, c_size_t, c_ssize_t)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "CreateWindowExW": (c_void_p, (c_uint32, c_wchar_p, c_wchar_p, c_uint32, *(c_int,) * 4, *(c_void_p,) * 4)),
    "SetWindowLongPtrW": (c_void_p, (c_void_p, c_int, _Procedure)),
    "DefWindowProcW": (c_ssize_t, (c_void_p, c_uint, c_size_t, c_ssize_t)),
    "GetMessageW": (c_int, (c_void_p, c_void_p, c_uint, c_uint)),
    "DispatchMessageW": (c_ssize_t, (c_void_p,)),
    "PostThreadMessageW": (c_int, (c_uint32, c_uint, c_size_t, c_ssize_t)),
    "RegisterSuspendResumeNotification": (c_void_p, (c_void_p, c_uint32)),
    "UnregisterSuspendResumeNotification": (c_int, (c_void_p,)),
    "DestroyWindow": (c_int, (c_void_p,)),
}


@contextmanager
def hidden_window(on_end: Callable[[], None], on_resume: Callable[[], None]) -> Iterator[None]:
    """Within the block, call `on_end()` when the session ends and `on_resume()` after sleep, in a thread of its own.

    Elsewhere than on Windows nothing is called.
    """
    if sys.platform != "win32":
        yield
        return
    with window_of(ctypes.WinDLL("user32"), on_end, on_resume):
        yield


@contextmanager
def window_of(user: Any, on_end: Callable[[], None], on_resume: Callable[[], None]) -> Iterator[None]:
    """The same of a library that is open."""
    for name, (result_type, argument_types) in _SIGNATURES.items():
        function = getattr(user, name)
        function.restype, function.argtypes = result_type, argument_types
    over = threading.Event()
    # A daemon, which is not waited for: at the session's end it stays where it is.
    arguments = (user, on_end, on_resume, over)
    thread = threading.Thread(target=_run, args=arguments, name="wllm-hidden-window", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()  # first: a thread that takes no messages yet will see it
        user.PostThreadMessageW(thread.native_id, _WM_QUIT, 0, 0)


def _run(user: Any, on_end: Callable[[], None], on_resume: Callable[[], None], over: threading.Event) -> None:
    def procedure(window: int, message: int, word: int, value: int) -> int:
        if message == _WM_ENDSESSION and word:  # 0: another program has said no
            on_end()
            stay()
        if message == _WM_POWERBROADCAST and word == _PBT_APMRESUMEAUTOMATIC:
            on_resume()
        return int(user.DefWindowProcW(window, message, word, value))

    kept = _Procedure(procedure)
    # Of a class that is there already, and at the top: windows for messages alone are not told.
    window = user.CreateWindowExW(0, "STATIC", "wLLM", 0, 0, 0, 0, 0, None, None, None, None)
    if not window:
        return  # a session without a desktop
    user.SetWindowLongPtrW(window, _WINDOW_PROCEDURE, kept)
    # Computers that never sleep wholly (modern standby) tell only who asks; the others may tell twice.
    registration = user.RegisterSuspendResumeNotification(window, _NOTIFY_WINDOW)
    message = (c_uint64 * 8)()  # a MSG, which has 48 bytes
    while not over.is_set() and user.GetMessageW(byref(message), None, 0, 0) > 0:
        user.DispatchMessageW(byref(message))
    if registration:
        user.UnregisterSuspendResumeNotification(registration)
    user.DestroyWindow(window)
