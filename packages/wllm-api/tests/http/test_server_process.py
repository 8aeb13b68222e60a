"""`python -m wllm_api` as users run it: start, Ctrl+C, a taken port, a missing key."""

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from fastapi import FastAPI
from wine import needs_ctrl_break

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.http_errors import ExposedWithoutKey, PortUnavailable
from wllm_api.server import EXIT_INTERRUPTED, ApiServer, serve
from wllm_api.settings import Access
from wllm_api.sockets import bind_sockets
from wllm_api.testing import running_server, wait_until

LONG = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, so that an interrupt reaches its engine too, as in a console."""
    flags = subprocess.CREATE_NEW_PROCESS_GROUP if sys.platform == "win32" else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "wllm_api", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        creationflags=flags,
        start_new_session=sys.platform != "win32",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupt(process: subprocess.Popen[str]) -> None:
    if sys.platform == "win32":
        process.send_signal(signal.CTRL_BREAK_EVENT)
    else:
        os.killpg(process.pid, signal.SIGINT)


def is_up(port: int, path: str = "/health") -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200
    except httpx.TransportError:
        return False


@needs_ctrl_break
def test_interrupt_when_idle() -> None:
    """R46."""
    port = free_port()
    with command("--port", str(port)) as process:
        wait_until(lambda: is_up(port))
        started = time.perf_counter()
        interrupt(process)
        _, errors = process.communicate(timeout=15)
        assert time.perf_counter() - started < 5
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert not is_up(port)


def test_interrupt_as_soon_as_the_address_is_told_starts_nothing() -> None:
    engine = EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {})
    app = create_app([HostedModel(engine, ["m"])])
    before = signal.getsignal(signal.SIGINT)
    assert serve(app, "127.0.0.1", 0, on_bound=lambda url: signal.raise_signal(signal.SIGINT)) == 0
    assert (engine.pid, engine.state) == (None, "stopped")
    assert signal.getsignal(signal.SIGINT) is before


@needs_ctrl_break
def test_interrupt_while_loading() -> None:
    port = free_port()
    with command("--port", str(port)) as process:
        wait_until(lambda: is_up(port, "/version"))
        interrupt(process)
        _, errors = process.communicate(timeout=15)
    assert process.returncode == 0
    assert "Traceback" not in errors


@needs_ctrl_break
def test_interrupt_when_busy_ends_with_an_error_event() -> None:
    port = free_port()
    with command("--port", str(port), "--step-s", "0.01") as process:
        wait_until(lambda: is_up(port))
        with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=LONG, timeout=20) as answer:
            lines = answer.iter_lines()
            next(lines)
            started = time.perf_counter()
            interrupt(process)
            assert "shutting_down" in [line for line in lines if line][-1]
        _, errors = process.communicate(timeout=15)
        assert time.perf_counter() - started < 15
    assert process.returncode == 0
    assert "Traceback" not in errors


@needs_ctrl_break
def test_second_interrupt_ends_at_once() -> None:
    port = free_port()
    with command("--port", str(port), "--step-s", "0.01") as process:
        wait_until(lambda: is_up(port))
        with httpx.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=LONG, timeout=20) as answer:
            next(answer.iter_lines())
            interrupt(process)
            wait_until(lambda: not is_up(port, "/version"), 5)
            started = time.perf_counter()
            interrupt(process)
            assert process.wait(10) == EXIT_INTERRUPTED
            assert time.perf_counter() - started < 2


def test_taken_port_is_told_before_anything_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with command("--port", str(port)) as process:
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert (
        errors.strip()
        == f"error: Port {port} on 127.0.0.1 is in use by another program. Stop it, or choose another port."
    )


def test_second_port_for_ollama() -> None:
    port, second = free_port(), free_port()
    with command("--port", str(port), "--ollama-port", str(second)):
        wait_until(lambda: is_up(port))
        assert httpx.get(f"http://127.0.0.1:{second}/").text == "wLLM is running; its routes are at /docs"
        for one in (port, second):
            answer = httpx.get(f"http://127.0.0.1:{one}/api/tags").json()
            assert answer["models"][0]["name"] == "scripted:latest"


@needs_ctrl_break
def test_interrupt_ends_both_ports() -> None:
    port, second = free_port(), free_port()
    with command("--port", str(port), "--ollama-port", str(second)) as process:
        wait_until(lambda: is_up(port))
        interrupt(process)
        assert process.wait(15) == 0
    assert not is_up(second, "/")


def test_taken_second_port_is_told_and_frees_the_first() -> None:
    app = create_app([HostedModel(EngineProcess("never:started", {}), ["m"])])
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortUnavailable, match="in use"):
            serve(app, "127.0.0.1", port, ollama_port=taken.getsockname()[1])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "some-box"])
def test_other_machines_need_a_key(host: str) -> None:
    app = create_app([HostedModel(EngineProcess("never:started", {}), ["m"])])
    with pytest.raises(ExposedWithoutKey, match="--api-key"):
        serve(app, host, 0)


def test_key_or_flag_opens_the_server() -> None:
    port = free_port()
    for arguments in (["--api-key", "k"], ["--no-auth"]):
        with command("--host", "0.0.0.0", "--port", str(port), *arguments) as process:
            wait_until(lambda: is_up(port))
            assert process.poll() is None


def test_idle_connections_are_kept_for_75_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than the minute that proxies and clients' pools keep theirs."""
    engine = EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {})
    assert ApiServer(create_app([HostedModel(engine, ["m"])])).config.timeout_keep_alive == 75
    monkeypatch.setattr("wllm_api.server.KEEP_ALIVE_S", 1)
    with running_server(create_app([HostedModel(engine, ["m"])])) as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as sock:
            for pause_s in (0.0, 0.5, 0.5):
                time.sleep(pause_s)
                sock.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while not answer.endswith(b"}"):
                    piece = sock.recv(4096)
                    assert piece
                    answer += piece
            assert sock.recv(4096) == b""


def test_engine_that_cannot_load_gives_an_exit_code() -> None:
    app = create_app(
        [
            HostedModel(
                EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {"load_error": "no weights"}), ["m"]
            )
        ],
        access=Access(),
    )
    bound: list[str] = []
    assert serve(app, "127.0.0.1", 0, on_bound=bound.append) == 1
    assert bound[0].startswith("http://127.0.0.1:")


class _WithLatecomer(ApiServer):
    # A client was accepted right before the end, and its connection is made when uvicorn has closed the others.
    def __init__(self, app: FastAPI) -> None:
        super().__init__(app)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.client = socket.create_connection(listening.getsockname())
            self._accepted, _ = listening.accept()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        protocol = functools.partial(
            self.config.http_protocol_class,  # type: ignore[arg-type]
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )
        coming = loop.create_task(loop.connect_accepted_socket(protocol, self._accepted))
        await super().shutdown(sockets)
        await coming


def test_a_connection_that_comes_at_the_end_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    engine = EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {})
    server = _WithLatecomer(create_app([HostedModel(engine, ["m"])]))
    sockets = bind_sockets("127.0.0.1", 0)
    thread = threading.Thread(target=server.run_until_end, args=(sockets,))
    thread.start()
    with server.client as client:
        client.settimeout(30)
        wait_until(lambda: server.started)
        server.should_exit = True
        assert client.recv(1) == b""
        thread.join()
    assert "timeout graceful shutdown exceeded" not in caplog.text
