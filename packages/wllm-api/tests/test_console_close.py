"""The console's end on Windows begins an orderly one, within the seconds that Windows gives."""

from __future__ import annotations

import _thread
import ctypes
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import pytest

from wllm_api import console_close, server
from wllm_api.app import create_app
from wllm_api.console_close import handler_of, on_console_close
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.settings import Limits
from wllm_api.testing import wait_until

CTRL_C, CTRL_BREAK, CLOSE, LOGOFF, SHUTDOWN = 0, 1, 2, 5, 6
LONG = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}

# What Windows runs in a process whose console is closed: this function, in a new thread.
CLOSED = f"""
import ctypes, threading
from ctypes import c_size_t, c_uint32, c_void_p
from wllm_api.console_close import on_console_close

kernel = ctypes.WinDLL("kernelbase")
kernel.CreateThread.argtypes = (c_void_p, c_size_t, c_void_p, c_void_p, c_uint32, c_void_p)
told = threading.Event()
with on_console_close(told.set):
    kernel.CreateThread(None, 0, ctypes.cast(kernel.CtrlRoutine, c_void_p), {CLOSE}, 0, None)
    print("begins" if told.wait(30) else "nothing", flush=True)
print("ends", flush=True)
"""


class Kernel:
    """Knows the handlers that are set, and calls them as Windows does: the last first, by their address."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []
        self.SetConsoleCtrlHandler = self._set

    def _set(self, handler: Any, add: int) -> int:
        if add:
            self.handlers.append(handler)
        else:
            self.handlers.remove(handler)
        return 1

    def tell(self, event: int) -> bool:
        """Whether a handler has taken the event."""
        addresses = [ctypes.cast(handler, ctypes.c_void_p).value or 0 for handler in reversed(self.handlers)]
        return any(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(address)(event) for address in addresses)


@pytest.mark.parametrize("event", [CLOSE, LOGOFF, SHUTDOWN])
def test_the_handler_begins_the_end_and_stays(event: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(console_close, "stay", lambda: log.append("stays"))
    kernel = Kernel()
    with handler_of(kernel, lambda: log.append("begins")):
        assert kernel.tell(event)
    assert log == ["begins", "stays"]
    assert kernel.handlers, "to take away one that runs would wait for its end"


@pytest.mark.parametrize("event", [CTRL_C, CTRL_BREAK])
def test_interrupts_go_to_python(event: int) -> None:
    kernel = Kernel()
    with handler_of(kernel, lambda: pytest.fail("an interrupt is no end")):
        assert not kernel.tell(event)


def test_an_error_takes_the_handler_away() -> None:
    kernel = Kernel()
    with pytest.raises(KeyError), handler_of(kernel, lambda: None):
        raise KeyError
    assert not kernel.handlers


@pytest.mark.skipif(sys.platform != "win32", reason="needs Windows' own dispatch of console events")
def test_a_process_ends_while_its_handler_stays() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED], stdout=subprocess.PIPE, encoding="utf-8", timeout=60)
    assert (done.stdout, done.returncode) == ("begins\nends\n", 0)


def test_the_systems_own_function_takes_it() -> None:
    with on_console_close(lambda: None):
        pass
    if sys.platform == "win32":
        # Taken away: once more is an error.
        unknown = console_close._Handler(lambda event: 0)
        assert not ctypes.WinDLL("kernel32").SetConsoleCtrlHandler(unknown, 0)


class Client(threading.Thread):
    """Reads a long answer of a server in this process, and closes the server's console while it runs."""

    def __init__(self, kernel: Kernel, *, interrupts_first: bool) -> None:
        super().__init__()
        self._kernel, self._interrupts_first = kernel, interrupts_first
        self._url = ""
        self.last = ""
        self.seconds = 0.0

    def begin(self, url: str) -> None:
        self._url = url
        self.start()

    def run(self) -> None:
        wait_until(lambda: httpx.get(f"{self._url}/health").status_code == 200)
        with httpx.stream("POST", f"{self._url}/v1/completions", json=LONG, timeout=30) as answer:
            lines = answer.iter_lines()
            next(lines)
            if self._interrupts_first:
                _thread.interrupt_main()
                time.sleep(0.5)
            began = time.perf_counter()
            self._kernel.tell(CLOSE)
            self.last = [line for line in lines if line][-1]
            self.seconds = time.perf_counter() - began


@pytest.mark.parametrize("interrupts_first", [False, True])
def test_streams_and_engine_end_in_time(interrupts_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(server, "on_console_close", lambda begin: handler_of(kernel, begin))
    # Here the process goes on, where a server's would end.
    monkeypatch.setattr(console_close, "stay", lambda: None)
    engine = EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {"step_s": 0.01})
    app = create_app([HostedModel(engine, ["m"])], limits=Limits(shutdown_grace_s=25.0))
    client = Client(kernel, interrupts_first=interrupts_first)
    assert server.serve(app, "127.0.0.1", 0, on_bound=client.begin) == 0
    client.join()
    assert "shutting_down" in client.last
    assert client.seconds < 3
    assert (engine.state, engine.pid) == ("stopped", None)
