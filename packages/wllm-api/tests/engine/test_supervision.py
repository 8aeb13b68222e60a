"""Neither process outlives the other (I17), and Ctrl+C is for the server alone."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from wine import needs_ctrl_break

HERE = Path(__file__).parent


@contextmanager
def _server(phase: str) -> Iterator[tuple["subprocess.Popen[str]", socket.socket]]:
    # The engine holds a connection to us for as long as it lives: its end is seen on every system.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port = listener.getsockname()[1]
        flags = 0
        if sys.platform == "win32":
            flags = subprocess.CREATE_NEW_PROCESS_GROUP
        server = subprocess.Popen(
            [sys.executable, str(HERE / "server_stub.py"), str(port), phase],
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])},
            start_new_session=True,
            creationflags=flags,
        )
        try:
            engine, _ = listener.accept()
            with engine:
                engine.settimeout(30)
                assert engine.recv(1) == b"x"
                assert server.stdout is not None
                assert server.stdout.readline() == "up\n"
                yield server, engine
        finally:
            server.kill()
            server.wait()
            assert server.stdout is not None
            server.stdout.close()


def _ended(engine: socket.socket) -> bool:
    try:
        return engine.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("phase", ["idle", "loading", "computing"])
def test_a_killed_server_takes_its_engine_with_it(phase: str) -> None:
    with _server(phase) as (server, engine):
        started = time.perf_counter()
        server.kill()
        assert _ended(engine)
        assert time.perf_counter() - started < 2.0


@needs_ctrl_break
def test_ctrl_c_reaches_the_server_and_not_the_engine() -> None:
    with _server("idle") as (server, engine):
        if sys.platform == "win32":
            server.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            os.killpg(server.pid, signal.SIGINT)
        output, _ = server.communicate(timeout=60)
        # asyncio.run turns the interrupt into a cancelled task; the engine was still ready then, and stopped politely.
        assert output.splitlines() == ["ready", "stopped"]
        assert _ended(engine)
