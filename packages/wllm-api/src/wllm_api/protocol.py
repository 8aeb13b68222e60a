"""HTTP/1.1 on one connection: uvicorn's protocol, with bounds for what a client may send and how long it may take.

Errors are JSON here too. Whoever sends nothing for as long as an idle connection is kept, in the middle of a request or
before the first, is disconnected. A wish to upgrade to another protocol is ignored, as HTTP allows.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import socket
import uuid
from http import HTTPStatus
from typing import Literal

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from wllm_api.http_errors import HeadTooLarge, HttpError, InvalidRequest, RequestTimeout

MAX_HEAD_BYTES = 64 * 1024
# What is read on of a body that was refused unread, so that its client gets to the refusal.
MAX_DRAINED_BYTES = 32 * 1024 * 1024
# Fed to the parser at once, since its callbacks do not tell where in these bytes they are.
_PIECE_BYTES = 16 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")


class PromptProtocol(HttpToolsProtocol):
    """A connection that sends at once.

    Otherwise the second of two small writes, and so most tokens of a stream, waits for the client to acknowledge the
    first, which it may put off for 40 ms, on Windows for 200. asyncio sees to that only where it made the socket.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take a new connection (asyncio)."""
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reading: Literal["nothing", "head", "body"] = "nothing"
        self._resuming = False
        self._bytes_without_body = self._body_bytes = 0
        self._last_sign = self.loop.time()
        super().connection_made(transport)
        self._next_look = self.loop.call_later(self.timeout_keep_alive, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone (asyncio)."""
        self._next_look.cancel()
        super().connection_lost(exc)
        # Windows' transports keep their protocol, which keeps them: both would wait for the collector.
        self.transport.set_protocol(asyncio.Protocol())

    def data_received(self, data: bytes) -> None:
        """Take what came (asyncio)."""
        self._unset_keepalive_if_required()
        self._last_sign = self.loop.time()
        for start in range(0, len(data), _PIECE_BYTES):
            if not self.transport.is_closing():
                self._feed(data[start : start + _PIECE_BYTES])

    def _feed(self, piece: bytes) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay_with_http()
            self._feed(piece[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(
                InvalidRequest("The request is not valid HTTP/1.1. Send it with an HTTP client, with a known method.")
            )
            return
        self._bytes_without_body += len(piece)
        if self._bytes_without_body > MAX_HEAD_BYTES:
            self._refuse(HeadTooLarge(f"The request's headers have more than {MAX_HEAD_BYTES:,} bytes. Send less."))

    def _stay_with_http(self) -> None:
        # The parser takes what follows the head for the other protocol: a new one is brought to where this one is.
        framing = self._framing()
        self.parser = httptools.HttpRequestParser(self)
        if framing:
            self._resuming = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
            self._resuming = False

    def _framing(self) -> bytes:
        return b"".join(b"%b: %b\r\n" % (name, value) for name, value in self.headers if name in _FRAMING)

    def on_message_begin(self) -> None:
        """A request begins (httptools)."""
        if not self._resuming:
            self._reading = "head"
            self._bytes_without_body = self._body_bytes = 0
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of its target (httptools)."""
        if not self._resuming:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header (httptools), or a trailer, which must not pass for a header: nobody needs it."""
        if self._reading == "head":
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head has been read (httptools)."""
        if not self._resuming:
            self._reading = "body"
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body (httptools)."""
        self._bytes_without_body = 0
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete and self._body_bytes > MAX_DRAINED_BYTES:
            self.transport.close()

    def on_message_complete(self) -> None:
        """It has been read whole (httptools), unless its body comes with the next parser."""
        if not self.parser.should_upgrade() or not self._framing():
            self._reading = "nothing"
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """It has its answer (uvicorn)."""
        self._last_sign = self.loop.time()
        # The timer that this sets keeps its context, cancelled or not; that of the request holds what is noted of it.
        contextvars.Context().run(super().on_response_complete)

    def _look(self) -> None:
        """Disconnect a client that is silent although it is its turn."""
        answered = self.cycle is None or self.cycle.response_complete
        waits = (answered or self.cycle.more_body) and not self.flow.read_paused
        silent_s = self.loop.time() - self._last_sign if waits else 0.0
        if silent_s < self.timeout_keep_alive:
            self._next_look = self.loop.call_later(self.timeout_keep_alive - silent_s, self._look)
        elif self._reading == "head" or not answered:
            self._refuse(
                RequestTimeout(f"The rest of the request did not come for {silent_s:.0f} s. Send it again, whole.")
            )
        else:
            self.transport.close()

    def _refuse(self, refusal: HttpError) -> None:
        # Half of an answer may be on its way; another one behind it would be taken for its rest.
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = json.dumps(refusal.body()).encode()
            head = (
                f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nX-Request-Id: {uuid.uuid4().hex}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
