"""Power throttling is refused, by every process."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from wllm_api import server
from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.power_throttling import ask, refuse_throttling

# A child of a server that is gone: the first end of file ends it.
CHILD = """
import time
from {module} import {name} as child

class Gone:
    def recv(self):
        time.sleep(0.5)
        raise EOFError

    def send_bytes(self, message):
        pass

child.refuse_throttling = lambda: print("refused", flush=True)
child.{call}
"""


class Function:
    """A C function in Python; `ctypes` sets its signature."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __call__(self, *arguments: Any) -> int:
        return int(self._body(*arguments))


@pytest.mark.parametrize("agrees", [True, False])
def test_the_process_decides_its_speed_and_wants_no_throttling(agrees: bool) -> None:
    asked: list[object] = []

    def take(process: int, kind: int, state: Any, size: int) -> bool:
        asked.append((process, kind, ctypes.string_at(ctypes.addressof(state._obj), size)))
        return agrees

    kernel = SimpleNamespace(GetCurrentProcess=Function(lambda: -1), SetProcessInformation=Function(take))
    assert ask(kernel) is agrees
    assert asked == [(-1, 4, bytes.fromhex("01000000 01000000 00000000"))]


def test_the_systems_own_function_takes_it() -> None:
    refuse_throttling()
    if sys.platform == "win32":
        assert ask(ctypes.WinDLL("kernel32")) in (True, False)  # an older Windows says no


@pytest.mark.parametrize(
    ("module", "name", "call", "code"),
    [
        ("wllm_api.engine", "child", "main(Gone(), 'time:sleep', 60)", 3),
        ("wllm_api.grammars", "trial", "_main(Gone())", 0),
    ],
    ids=["engine", "grammar on trial"],
)
def test_the_children_refuse(module: str, name: str, call: str, code: int) -> None:
    script = CHILD.format(module=module, name=name, call=call)
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, encoding="utf-8", timeout=60)
    assert (done.stdout, done.returncode) == ("refused\n", code)


def test_the_server_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(server, "refuse_throttling", lambda: calls.append("refused"))
    app = create_app([HostedModel(EngineProcess("never:started", {}), ["m"])])
    assert server.serve(app, "127.0.0.1", 0, on_bound=lambda url: signal.raise_signal(signal.SIGINT)) == 0
    assert calls == ["refused"]
