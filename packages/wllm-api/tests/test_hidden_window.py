"""A window that nobody sees hears of the session's end, which begins an orderly one, and of waking up."""

from __future__ import annotations

import _thread
import ctypes
import queue
import sys
import threading
from ctypes import c_size_t, c_ssize_t, c_uint, c_void_p
from typing import Any

import pytest

from wllm_api import hidden_window as module
from wllm_api import server
from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hidden_window import hidden_window, window_of
from wllm_api.hosting import HostedModel
from wllm_api.testing import wait_until

QUERYENDSESSION, ENDSESSION, QUIT, POWERBROADCAST = 0x11, 0x16, 0x12, 0x218
SUSPEND, RESUME = 0x4, 0x12
WINDOW, REGISTRATION = 0x1_0042, 0x1_0043


def nothing() -> None:
    pytest.fail("nothing is told")


class Function:
    """A C function in Python; `ctypes` sets its signature."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __call__(self, *arguments: Any) -> Any:
        return self._body(*arguments)


class User:
    """A desktop, or none, that sends messages to its one window by the address of the window's procedure."""

    def __init__(self, *, has_desktop: bool = True) -> None:
        self.window = WINDOW if has_desktop else None
        self.procedure = 0
        self.threads: set[int | None] = set()
        self.destroyed = threading.Event()
        self._messages: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.CreateWindowExW = Function(self._create)
        self.SetWindowLongPtrW = Function(self._set)
        self.DefWindowProcW = Function(lambda window, message, word, value: 1 if message == QUERYENDSESSION else 0)
        self.GetMessageW = Function(self._get)
        self.DispatchMessageW = Function(lambda message: 0)
        self.PostThreadMessageW = Function(self._post)
        self.registered: list[int | None] = []
        self.RegisterSuspendResumeNotification = Function(self._register)
        self.UnregisterSuspendResumeNotification = Function(self.registered.remove)
        self.DestroyWindow = Function(lambda window: self.destroyed.set())

    def send(self, message: int, word: int) -> int:
        """What the window answers. As Windows does it for this test only: in the caller's thread."""
        types = (c_ssize_t, c_void_p, c_uint, c_size_t, c_ssize_t)
        return int(ctypes.CFUNCTYPE(*types)(self.procedure)(WINDOW, message, word, 0))

    def _create(self, style: int, kind: str, *rest: object) -> int | None:
        assert kind == "STATIC"
        self.threads.add(threading.get_native_id())
        return self.window

    def _set(self, window: int, index: int, procedure: Any) -> None:
        assert (window, index) == (WINDOW, -4)
        self.procedure = ctypes.cast(procedure, c_void_p).value or 0

    def _register(self, window: int, flags: int) -> int:
        assert (window, flags) == (WINDOW, 0)
        self.registered.append(REGISTRATION)
        return REGISTRATION

    def _get(self, message: Any, *rest: object) -> int:
        return int(self._messages.get() != QUIT)

    def _post(self, thread: int | None, message: int, word: int, value: int) -> int:
        assert thread is not None
        self.threads.add(thread)
        self._messages.put(message)
        return 1


def test_the_end_of_the_session_begins_ours_and_the_answer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(module, "stay", lambda: log.append("stays"))
    user = User()
    with window_of(user, lambda: log.append("begins"), nothing):
        wait_until(lambda: user.procedure != 0)
        assert user.send(QUERYENDSESSION, 0) == 1  # the session may end
        assert user.send(ENDSESSION, 0) == 0  # and does not
        assert log == []
        user.send(ENDSESSION, 1)
        assert log == ["begins", "stays"]
    assert user.destroyed.wait(10)
    assert len(user.threads) == 1


def test_waking_up_is_told() -> None:
    log: list[str] = []
    user = User()
    with window_of(user, nothing, lambda: log.append("awake")):
        wait_until(lambda: user.registered == [REGISTRATION])
        user.send(POWERBROADCAST, SUSPEND)
        assert log == []
        user.send(POWERBROADCAST, RESUME)
        assert log == ["awake"]
    assert user.destroyed.wait(10)
    assert not user.registered


def test_a_session_without_a_desktop() -> None:
    user = User(has_desktop=False)
    with window_of(user, nothing, nothing):
        wait_until(lambda: bool(user.threads))
    assert not user.destroyed.is_set()


def test_the_block_ends_the_thread() -> None:
    def windows() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "wllm-hidden-window"]

    user = User()
    with window_of(user, nothing, nothing):
        assert windows()
    wait_until(lambda: not windows(), 10)


def test_a_block_that_is_left_before_the_window_is_there_ends_the_thread_too() -> None:
    user = User()
    left = threading.Event()
    create, user.CreateWindowExW = user.CreateWindowExW, Function(lambda *rest: left.wait(10) and create(*rest))
    user.PostThreadMessageW = Function(lambda *_: 0)  # a thread without a window takes no messages
    with window_of(user, nothing, nothing):
        pass
    left.set()
    assert user.destroyed.wait(10)


def test_the_server_lets_its_engine_look_for_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {})
    threads: list[str] = []
    monkeypatch.setattr(engine, "check_device", lambda: threads.append(threading.current_thread().name))
    user = User()
    monkeypatch.setattr(server, "hidden_window", lambda *callbacks: window_of(user, *callbacks))
    wake = threading.Thread(target=lambda: user.send(POWERBROADCAST, RESUME), name="of the window")

    def follow() -> None:
        wait_until(lambda: bool(user.registered) and engine.state == "ready")
        wake.start()
        wait_until(lambda: bool(threads))
        _thread.interrupt_main()

    follower = threading.Thread(target=follow)
    app = create_app([HostedModel(engine, ["m"])])
    assert server.serve(app, "127.0.0.1", 0, on_bound=lambda url: follower.start()) == 0
    follower.join()
    wake.join()
    assert threads == ["MainThread"]
    # Too late, and too early, is no error.
    server.ApiServer(app).handle_resume()


class WindowsUser:
    """The system's own library, which notes the window that is created."""

    def __init__(self) -> None:
        self._library = ctypes.WinDLL("user32") if sys.platform == "win32" else None
        self.window: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.CreateWindowExW = Function(self._create)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def _create(self, *arguments: Any) -> int | None:
        create = self._library.CreateWindowExW
        create.restype, create.argtypes = module._SIGNATURES["CreateWindowExW"]
        window = create(*arguments)
        self.window.put(window)
        return window


@pytest.mark.skipif(sys.platform != "win32", reason="needs Windows' own windows")
@pytest.mark.parametrize(("message", "word"), [(ENDSESSION, 1), (POWERBROADCAST, RESUME)])
def test_windows_own_window_is_told(message: int, word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "stay", lambda: None)
    told = threading.Event()
    user = WindowsUser()
    callbacks = (told.set, nothing) if message == ENDSESSION else (nothing, told.set)
    with window_of(user, *callbacks):
        window = user.window.get(timeout=60)
        if window is None:
            pytest.skip("this session has no desktop, as those of services: Windows gives it no window")
        user.SendMessageW.argtypes = (c_void_p, c_uint, c_size_t, c_ssize_t)
        # Until it has its procedure, it is one of the system's.
        wait_until(lambda: user.SendMessageW(window, message, word, 0) in (0, 1) and told.is_set(), 10)


def test_elsewhere_there_is_none() -> None:
    with hidden_window(nothing, nothing):
        assert sys.platform == "win32" or "wllm-hidden-window" not in {one.name for one in threading.enumerate()}
