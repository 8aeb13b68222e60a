"""Streamed answers: a stream that starts late enough to refuse properly, and always ends.

The status goes out with the first event, or after `START_WITHIN_S`: until then an error is a plain HTTP error.
Later errors are one event with an error object, then the end. While nothing comes, comment lines keep proxies and
clients from giving up, in formats that have comments. When the client goes or stalls, the events are closed, which
aborts the request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from typing import ClassVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wllm_api.disconnect import disconnected, end
from wllm_api.http_errors import HttpError
from wllm_api.middleware.faults import reported
from wllm_api.settings import Limits

logger = logging.getLogger(__name__)

START_WITHIN_S = 2.0
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
# Made once: `json.dumps` with options makes an encoder for every token.
encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def event(data: dict[str, object]) -> bytes:
    """One `data:` line; raises `ValueError` for a number that JSON does not have."""
    return b"data: " + encode(data).encode() + b"\n\n"


def typed_event(data: dict[str, object]) -> bytes:
    """An event whose name is the data's own `type`, as the newer APIs have them."""
    return f"event: {data['type']}\n".encode() + event(data)


class EventStream(Response):
    """A response that sends `events` as they come; owns the generator and closes it."""

    content_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    ping: ClassVar[bytes | None] = PING

    def __init__(self, events: AsyncGenerator[bytes, None], limits: Limits) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({
            "Content-Type": self.content_type,
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        })  # fmt: skip
        self._events = events
        self._limits = limits
        self._sending_since: float | None = None
        self._last_sent = 0.0

    def failure(self, error: HttpError) -> bytes:
        """The event that tells of an error after the start."""
        return event(error.body())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        work = asyncio.create_task(self._run(scope, send))
        watch = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            await end(work, watch)

    async def _run(self, scope: Scope, send: Send) -> None:
        first = asyncio.create_task(anext(self._events, None))
        try:
            await asyncio.wait((first,), timeout=START_WITHIN_S)
            if first.done():
                first.result()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._last_sent = time.perf_counter()
            sender = asyncio.create_task(self._send_all(first, scope, send))
            pulse = asyncio.create_task(self._pulse(send))
            try:
                await asyncio.wait((sender, pulse), return_when=asyncio.FIRST_COMPLETED)
                if sender.done():
                    sender.result()
            finally:
                await end(sender, pulse)
        finally:
            await end(first)
            await self._events.aclose()

    async def _send_all(self, first: asyncio.Task[bytes | None], scope: Scope, send: Send) -> None:
        try:
            data = await first
            while data is not None:
                await self._send(send, data)
                data = await anext(self._events, None)
        except HttpError as error:
            await self._send(send, self.failure(error))
        except Exception as error:
            await self._send(send, self.failure(reported(error, scope)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        self._sending_since = time.perf_counter()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending_since = None
        self._last_sent = time.perf_counter()

    async def _pulse(self, send: Send) -> None:
        interval = self._limits.ping_interval_s
        while True:
            now = time.perf_counter()
            idle = self._sending_since is None and now - self._last_sent >= interval
            if idle and self.ping is not None:
                await self._send(send, self.ping)
            elif self._sending_since is not None and now - self._sending_since > self._limits.stalled_client_s:
                logger.info("a client read next to nothing for %.0f s and was dropped", now - self._sending_since)
                return
            await asyncio.sleep(interval / 4)
