"""Runs an application until Ctrl+C, or until its engine has failed for good.

Owns the sockets, the signals and the exit code. The first Ctrl+C lets running answers go on for
`Limits.shutdown_grace_s` seconds and then ends them; the second one ends the process at once. On Windows the end of the
console, or of the session, is a Ctrl+C with less time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from wllm_api.console_close import on_console_close
from wllm_api.heaps import share_heaps
from wllm_api.hidden_window import hidden_window
from wllm_api.http_errors import ExposedWithoutKey, PortUnavailable
from wllm_api.power_throttling import refuse_throttling
from wllm_api.protocol import PromptProtocol
from wllm_api.serving import Serving
from wllm_api.sockets import bind_sockets, is_loopback

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
KEEP_ALIVE_S = 75
# What is left after the grace period: closing connections and the engine's polite end.
CLEANUP_S = 3
# Windows ends a process five seconds after its console was closed, whatever it does.
CLOSE_GRACE_S = 1.0


def serve(
    app: FastAPI,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    ollama_port: int | None = None,
    no_auth: bool = False,
    on_bound: Callable[[str], None] | None = None,
) -> int:
    """Serve until the end and return the exit code; raises `PortUnavailable` or `ExposedWithoutKey` at once.

    An address that other machines can reach needs an API key, or `no_auth`. The whole API is on `ollama_port` too, for
    programs that look for Ollama there. `on_bound(url)` is called when the address is ours, before the engine starts to
    load.
    """
    serving: Serving = app.state.serving
    if not is_loopback(host) and not serving.access.api_keys and not no_auth:
        raise ExposedWithoutKey(
            f"Other machines can reach {host}, and the server has no API key. Give it one with --api-key, "
            "listen on 127.0.0.1, or say --no-auth if everybody may use it."
        )
    share_heaps()
    sockets = bind_sockets(host, port)
    url = _url(sockets[0])
    if ollama_port is not None:
        try:
            more = bind_sockets(host, ollama_port)
        except PortUnavailable:
            for sock in sockets:
                sock.close()
            raise
        logger.info("also listening on %s, for Ollama's clients", _url(more[0]))
        sockets += more
    refuse_throttling()
    server = ApiServer(app)
    closing = server.handle_close
    # From now on: who sees the address may press Ctrl+C at once.
    with server.capture_signals(), on_console_close(closing), hidden_window(closing, server.handle_resume):
        if on_bound is not None:
            on_bound(url)
        return server.run_until_end(sockets)


def _url(sock: socket.socket) -> str:
    address = sock.getsockname()
    return f"http://[{address[0]}]:{address[1]}" if ":" in address[0] else f"http://{address[0]}:{address[1]}"


class ApiServer(uvicorn.Server):
    """uvicorn with our signals, our shutdown, and an eye on the engine."""

    def __init__(self, app: FastAPI) -> None:
        self._serving: Serving = app.state.serving
        self._grace_s = self._serving.limits.shutdown_grace_s
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=PromptProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(self._grace_s + CLEANUP_S),
            )
        )

    def run_until_end(self, sockets: list[socket.socket]) -> int:
        """Serve on `sockets`; the exit code."""
        try:
            self.run(sockets)
        finally:
            for sock in sockets:
                sock.close()
        if self._serving.fatal is not None:
            logger.error("the server ends: %s", self._serving.fatal)
            return EXIT_FAILED
        return EXIT_OK

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start nothing when the end has been asked for."""
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Also end when the engine has failed for good."""
        self._serving.residency.note_given_up()
        if self._serving.fatal is not None:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, give running ones their grace, end the rest."""
        self._serving.closing = True
        ending = asyncio.get_running_loop().call_later(self._grace_s, self._serving.abort_running)
        closing = asyncio.create_task(self._close_connections())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            closing.cancel()

    async def _close_connections(self) -> None:
        # uvicorn does so once; a connection that was just accepted would come later, and be kept for further requests.
        while True:
            for connection in list(self.server_state.connections):
                connection.shutdown()
            await asyncio.sleep(0.1)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals while serving; unlike uvicorn, do not raise them again afterwards."""
        names = ("SIGINT", "SIGTERM", "SIGBREAK")
        taken = [getattr(signal, name) for name in names if hasattr(signal, name)]
        try:
            before = {number: signal.signal(number, self.handle_exit) for number in taken}
        except ValueError:
            # Not the main thread, which alone may set handlers; whoever owns that one sets `should_exit`.
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: an orderly end. Second: now."""
        if self.should_exit:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            # The engine process sees the end of its pipe and goes too.
            os._exit(EXIT_INTERRUPTED)
        self.should_exit = True
        logger.info("stopping; running answers have %g s to end, Ctrl+C again ends them at once", self._grace_s)

    def handle_close(self) -> None:
        """Console or session end, as any thread may tell: an orderly end in less time, of what ends already at once."""
        logger.info("the console or the session ends; running answers have %g s to end", CLOSE_GRACE_S)
        self._grace_s = CLOSE_GRACE_S  # first: a shutdown that begins meanwhile sees it, or is seen below
        self.should_exit = True
        if self._serving.closing:
            self._call_soon(self._serving.abort_running)

    def handle_resume(self) -> None:
        """The computer has woken up, as any thread may tell: lost engines restart before a client comes."""
        logger.info("the computer has woken up; engines look for their device")
        for model in self._serving.models:
            self._call_soon(model.engine.check_device)

    def _call_soon(self, function: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(function)
