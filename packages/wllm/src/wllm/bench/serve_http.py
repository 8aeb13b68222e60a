"""An HTTP/1.1 client for load: the bytes of an answer with the time at which each piece came.

Owns sockets, knows nothing of what it carries. `serve_load` and the soak test call it. One thread serves hundreds of
streams: an asyncio protocol in front of httptools' parser, which wllm-api brings anyway and which has Windows wheels.
With 64 streams that took 25 us of CPU an event, http.client in a thread for each stream 39 us, httpx 80 us. Each
request has a connection of its own, as requests of different people have, so every figure holds the time to connect.
"""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from wllm.bench.errors import BenchError

OnData = Callable[[bytes, float], bool]


class ConnectionLost(Exception):
    """The connection ended before the answer did, or carried something that is not HTTP."""


class Server(NamedTuple):
    """Where requests go."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""  # of every path, without a slash at its end
    api_key: str | None = None

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> Server:
        """The server of `url`, with or without the /v1 that clients are told; raises `BenchError`."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise BenchError(f"the URL {url!r} names no server; give one such as http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix, api_key)

    def request(self, method: str, path: str, body: object = None) -> bytes:
        """The bytes of a request; `body` is sent as JSON."""
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        headers = {"Host": f"{host}:{self.port}", "Connection": "close", "Content-Length": str(len(content))}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return _head(f"{method} {self.prefix}{path} HTTP/1.1", headers) + content


@dataclass(slots=True)
class Answer:
    """What came back. `body` holds what no `on_data` took."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    hung_up: bool = False  # by us

    def json(self) -> dict[str, object]:
        """The body as a JSON object; empty when it is none."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


async def exchange(server: Server, request: bytes, on_data: OnData | None = None) -> Answer:
    """Send `request` and read the answer to its end; raises `OSError` or `ConnectionLost`.

    Of an answer with status 200, `on_data` gets every piece and its time on `perf_counter`'s clock, and returns whether
    to read on; False hangs up. Cancelling this hangs up too.
    """
    protocol = _Exchange(request, on_data)
    try:
        await asyncio.get_running_loop().create_connection(
            lambda: protocol, server.host, server.port, ssl=_tls() if server.tls else None
        )
        await protocol.done
    finally:
        protocol.hang_up()
    return protocol.answer


class _Exchange(asyncio.Protocol):
    def __init__(self, request: bytes, on_data: OnData | None) -> None:
        self.answer = Answer()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._on_data = on_data
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0.0
        self._transport: asyncio.Transport | None = None

    def hang_up(self) -> None:
        self.done.cancel()
        if self._transport is not None:
            # At once, not after what is left to send: who hangs up wants the server to notice.
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "create_connection makes a stream"
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        self._now = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionLost(f"the answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._end(ConnectionLost(str(error) if error else "closed by the server before the answer's end"))

    def on_headers_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self.done.done():
            return
        if self._on_data is None or self.answer.status != 200:
            self.answer.body += body
        elif not self._on_data(body, self._now):
            self.answer.hung_up = True
            self._end()

    def on_message_complete(self) -> None:
        self._end()

    def _end(self, error: Exception | None = None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _head(first: str, headers: Mapping[str, str]) -> bytes:
    lines = (first, *(f"{name}: {value}" for name, value in headers.items()), "", "")
    return "\r\n".join(lines).encode("latin-1")
