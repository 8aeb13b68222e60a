"""Either process may die: the other one notices, and nobody waits for ever."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from server.running_server import RunningServer, wait_until

LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path) as running:
        yield running.wait_ready()


def open_stream(server: RunningServer) -> Iterator[str]:
    """Data lines of a long stream; the request is under way when this returns."""
    body = json.dumps({"model": server.model(), **LONG}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
    lines = iter(urllib.request.urlopen(request, timeout=60))
    next(line for line in lines if line.startswith(b"data:"))
    return (line.decode().strip() for line in lines if line.startswith(b"data:"))


def test_killed_engine_fails_its_streams_and_comes_back(own: RunningServer) -> None:
    """R34."""
    stream = open_stream(own)
    engine = own.engine()
    engine.kill()
    last = list(stream)[-1]
    error = json.loads(last.removeprefix("data:"))["error"]
    assert "engine" in error["message"] and error["type"] == "server_error"
    wait_until(lambda: not own.is_ready(), 5, "health tells that the engine died")
    own.wait_ready()
    assert own.engine().pid != engine.pid
    answer = own.client().completions.create(model=own.model(), prompt="Hi", max_tokens=2)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert own.metric("engine_restarts_total") == 1


def test_killed_server_takes_its_busy_engine_along(own: RunningServer) -> None:
    open_stream(own)
    engine = own.engine()
    own.process.kill()
    took = wait_until(lambda: not _alive(engine), 2, "the engine ended")
    own.process.wait(5)
    print(f"engine gone after {took:.2f} s")


def test_server_killed_while_loading_takes_its_engine_along(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as loading:
        wait_until(lambda: bool(psutil.Process(loading.process.pid).children()), 60, "the engine process exists")
        time.sleep(1)
        engine = loading.engine()
        loading.process.kill()
        wait_until(lambda: not _alive(engine), 2, "the engine ended")
        loading.process.wait(5)


@pytest.mark.full
@pytest.mark.parametrize("after_s", [0.3 * number for number in range(20)])
def test_a_server_killed_at_any_moment_leaves_no_process(after_s: float, tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        time.sleep(after_s)
        server = psutil.Process(running.process.pid)
        server.suspend()  # so that it starts nothing between the two lines that follow
        children = server.children(recursive=True)
        server.kill()
        try:
            wait_until(lambda: not any(map(_alive, children)), 5, f"all of {children} ended")
        finally:
            for child in filter(_alive, children):
                child.kill()
        running.process.wait(5)


@pytest.mark.parametrize("busy", [False, True])
def test_ctrl_c_ends_both(own: RunningServer, busy: bool) -> None:
    """R46: on Windows it is Ctrl+Break, the only one that a test can send there."""
    stream = open_stream(own) if busy else iter(())
    engine = own.engine()
    own.interrupt()
    took = wait_until(lambda: own.process.poll() is not None, 15 if busy else 5, "the server ended")
    wait_until(lambda: not _alive(engine), 2, "the engine ended")
    assert own.process.returncode == 0
    assert "Traceback" not in own.text()
    if busy:
        list(stream)
    print(f"ended after {took:.2f} s")


def test_ctrl_c_while_loading_ends_both(tmp_path: Path) -> None:
    """R46."""
    with RunningServer(tmp_path) as loading:
        wait_until(lambda: bool(psutil.Process(loading.process.pid).children()), 60, "the engine process exists")
        engine = loading.engine()
        loading.interrupt()
        wait_until(lambda: loading.process.poll() is not None, 5, "the server ended")
        wait_until(lambda: not _alive(engine), 2, "the engine ended")
        assert "Traceback" not in loading.text()


def test_a_busy_port_is_named_before_the_model_loads(own: RunningServer, tmp_path: Path) -> None:
    port = int(own.url.rsplit(":", 1)[1])
    with RunningServer(tmp_path, port=port) as second:
        assert second.process.wait(30) == 1
        assert f"Port {port} on 127.0.0.1 is in use" in second.text()
        assert "Traceback" not in second.text()


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
