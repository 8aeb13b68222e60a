"""What comes on a connection, byte by byte: other protocols, smuggled requests, clients that stop in the middle."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from wllm_api.protocol import MAX_DRAINED_BYTES, MAX_HEAD_BYTES
from wllm_api.settings import Access

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"prompt": "a", "temperature": 0, "max_tokens": 3}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"1;a=b\r\n%b\r\n%x\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (BODY[:1], len(BODY) - 1, BODY[1:])
# The client of Java's standard library sends these with every request.
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: YQ==\r\nSec-WebSocket-Version: 13\r\n"
SILENCE_S = 0.5


@contextmanager
def connected(client: httpx.Client) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=20) as sock:
        yield sock


def answer(sock: socket.socket) -> tuple[int, Any]:
    """The status and the object of one whole answer."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = sock.recv(65536)
        assert piece, f"closed after {got!r}"
        got += piece
    head, _, content = got.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(content) < length:
        content += sock.recv(65536)
    assert len(content) == length, "one answer and nothing behind it"
    return int(head.split()[1]), json.loads(content)


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(65536) == b""
    except ConnectionError:
        return True


@pytest.fixture(scope="module")
def impatient(start_server: Any) -> Iterator[Any]:
    """A server that waits for silent clients for half a second only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wllm_api.server.KEEP_ALIVE_S", SILENCE_S)
        with start_server(step_s=0.005) as client:
            yield client


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
@pytest.mark.parametrize("framed", [LENGTH + b"\r\n" + BODY, CHUNKED + b"\r\n" + CHUNKS], ids=["length", "chunks"])
@pytest.mark.parametrize("upgrade", [b"", H2C, WEBSOCKET], ids=["plain", "h2c", "websocket"])
def test_request_in_pieces(client: httpx.Client, upgrade: bytes, framed: bytes, size: int) -> None:
    """A wish to upgrade costs no body; the next request on the connection is served too."""
    message = HEAD + upgrade + framed
    with connected(client) as sock:
        for _ in range(2):
            for start in range(0, len(message), size):
                sock.sendall(message[start : start + size])
            status, completion = answer(sock)
            assert (status, completion["usage"]["completion_tokens"]) == (200, 3)


@pytest.mark.parametrize("upgrade", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_upgrade_without_a_body_is_a_plain_request(client: httpx.Client, upgrade: bytes) -> None:
    with connected(client) as sock:
        for _ in range(2):
            sock.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")
            assert answer(sock)[0] == 200


@pytest.mark.parametrize("raw", [
    HEAD + LENGTH + CHUNKED + b"\r\n" + BODY, HEAD + CHUNKED + LENGTH + b"\r\n0\r\n\r\n",
    HEAD + LENGTH + b"Content-Length: 5\r\n\r\n" + BODY, HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
    HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + BODY, HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding:\r\n" + LENGTH + b"\r\n" + BODY,
    HEAD + LENGTH + b"X-A: b\r\n c\r\n\r\n" + BODY, HEAD.replace(b"\r\n", b"\n") + LENGTH + b"\r\n" + BODY,
    HEAD + LENGTH + b"X-A: b\rc\r\n\r\n" + BODY, HEAD + LENGTH + b"X-A: b\0c\r\n\r\n" + BODY,
    HEAD + b"Content-Length: -5\r\n\r\n", HEAD + b"Content-Length: +5\r\n\r\nhello",
    HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", HEAD + CHUNKED + b"\r\nzz\r\n",
    HEAD + CHUNKED + b"\r\n2\r\n{}xx\r\n0\r\n\r\n", HEAD + CHUNKED + b"\r\n-1\r\n",
    HEAD + CHUNKED + H2C + b"\r\nzz\r\n",
    b"CONNECT a:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    HEAD + b"Host: evil.example\r\n" + LENGTH + b"\r\n" + BODY,
])  # fmt: skip
def test_what_could_be_read_in_two_ways_is_refused(client: httpx.Client, raw: bytes) -> None:
    with connected(client) as sock:
        sock.sendall(raw)
        status, body = answer(sock)
    assert status == 400
    assert body["error"]["type"] == "invalid_request_error"


def test_trailers_are_no_headers(start_server: Any) -> None:
    with start_server(Access(api_keys=("key",))) as guarded, connected(guarded) as sock:
        chunks = b"%x\r\n%b\r\n0\r\nAuthorization: Bearer key\r\n\r\n" % (len(BODY), BODY)
        sock.sendall(HEAD + CHUNKED + b"\r\n" + chunks)
        assert answer(sock)[0] == 401


@pytest.mark.parametrize("start", [b"0\r\n", b"0\r\nX-A: ", b"1;a="])
def test_trailers_and_extensions_without_end_are_refused(client: httpx.Client, start: bytes) -> None:
    piece = (b"X-A: b\r\n" if start.endswith(b"\n") else b"a" * 8) * 256
    with connected(client) as sock:
        sock.sendall(HEAD + CHUNKED + b"\r\n" + start)
        sent = 0
        # Piece by piece, so that none is left unread when the server closes: that would cost us its answer.
        while not select.select([sock], [], [], 0.02)[0]:
            assert sent < 2 * MAX_HEAD_BYTES
            sock.sendall(piece)
            sent += len(piece)
        assert answer(sock)[0] == 431


def test_client_that_stops_in_the_middle(impatient: httpx.Client) -> None:
    unfinished = [
        b"GET /ver", HEAD, HEAD + LENGTH + b"\r\n{", HEAD + CHUNKED + b"\r\n", HEAD + CHUNKED + b"\r\n" + CHUNKS[:-2],
        HEAD + CHUNKED + b"\r\nffffffffffffffff\r\n{", HEAD + LENGTH + b"Expect: 100-continue\r\n\r\n",
    ]  # fmt: skip
    with ExitStack() as stack:
        sockets = {sent: stack.enter_context(connected(impatient)) for sent in [*unfinished, b"", b"\r\n"]}
        for sent, sock in sockets.items():
            sock.sendall(sent)
        started = time.perf_counter()
        for sent, sock in sockets.items():
            if b"Expect" in sent:
                assert sock.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            if sent in unfinished:
                assert answer(sock)[0] == 408
            assert ended(sock)
        assert time.perf_counter() - started < 10 * SILENCE_S


def test_silence_after_the_request_is_the_servers(impatient: httpx.Client) -> None:
    """Also when the client has sent half of the next request, or all of it."""
    body = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}  # a second or more
    content = json.dumps(body).encode()
    message = HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content
    for more in (b"", b"GET /version HT"):
        with connected(impatient) as sock:
            sock.sendall(message + more)
            assert answer(sock)[1]["usage"]["completion_tokens"] == 200
            if more:
                sock.sendall(b"TP/1.1\r\nHost: localhost\r\n\r\n")
                assert answer(sock)[0] == 200


def test_rest_of_a_refused_body(impatient: httpx.Client) -> None:
    """It is read for a while, so that the client comes to read its refusal; neither for ever nor without end."""
    head = HEAD + b"Content-Length: %d\r\n\r\n" % 10**12
    with connected(impatient) as sock:
        sock.sendall(head)
        assert answer(sock)[0] == 413
        sock.sendall(b"a" * 1000)
        assert ended(sock)
    with connected(impatient) as sock:
        sock.sendall(head)
        assert answer(sock)[0] == 413
        piece = b"a" * 2**20
        with pytest.raises(ConnectionError):
            for _ in range(2 * MAX_DRAINED_BYTES // len(piece)):
                sock.sendall(piece)


def test_body_is_asked_for_only_when_it_will_be_read(client: httpx.Client) -> None:
    for size, status in ((100, b"100"), (10**12, b"413")):
        with connected(client) as sock:
            sock.sendall(HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % size)
            assert sock.recv(12) == b"HTTP/1.1 " + status
