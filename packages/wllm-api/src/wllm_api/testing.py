"""Help for tests of this package and of those above it: a real server on real sockets, in a thread.

Standard library and this package only; clients are the test's own choice.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from wllm_api.server import ApiServer
from wllm_api.serving import Serving
from wllm_api.sockets import bind_sockets


@contextmanager
def running_server(app: FastAPI, *, ready: bool = True, timeout_s: float = 60.0) -> Iterator[str]:
    """Serve `app` on a free port of 127.0.0.1; yields the URL, once requests are taken if `ready`."""
    serving: Serving = app.state.serving
    sockets = bind_sockets("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    server = ApiServer(app)
    thread = threading.Thread(target=server.run_until_end, args=(sockets,), name="wllm-test-server")
    thread.start()
    try:
        wait_until(lambda: not thread.is_alive() or (server.started and (serving.ready or not ready)), timeout_s)
        assert thread.is_alive(), f"the server ended while it started: {serving.fatal}"
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Return when `condition()` holds; raises `TimeoutError`."""
    deadline = time.perf_counter() + timeout_s
    while not condition():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not true within {timeout_s} s: {getattr(condition, '__name__', condition)}")
        time.sleep(0.01)


def sse_data(lines: Iterable[str]) -> Iterator[dict[str, object] | None]:
    """The objects of a stream of server-sent events, strictly parsed; None for the end mark."""
    for line in lines:
        if not line or line.startswith(":"):
            continue
        assert line.startswith("data: "), f"not an event line: {line!r}"
        data = line.removeprefix("data: ")
        yield None if data == "[DONE]" else json.loads(data, parse_constant=_refuse)


def sse_events(lines: Iterable[str]) -> Iterator[dict[str, object]]:
    """The objects of a stream of named server-sent events, strictly parsed; an event's name is its object's type."""
    name = None
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "), parse_constant=_refuse)
            assert event["type"] == name, f"{event} behind the name {name!r}"
            name = None
            yield event
        else:
            assert not line, f"not an event line: {line!r}"


def _refuse(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")
