"""Limits how many requests a key may send, where the server was told to; without keys each client's address counts.

Health probes are free. A client may use its minute's worth at once and then gets them back evenly.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict

from starlette.types import ASGIApp, Receive, Scope, Send

from wllm_api.http_errors import RateLimited
from wllm_api.middleware.keys import OPEN_PATHS

MINUTE_S = 60.0
# Addresses are many; whoever has been quiet the longest is forgotten first, and begins anew.
MAX_CLIENTS = 10_000


class Rates:
    """Refuses with a 429 what goes beyond `per_minute`; inside of `Keys`. None: no limit."""

    def __init__(self, app: ASGIApp, per_minute: int | None = None) -> None:
        self.app = app
        self.per_minute = per_minute
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if self.per_minute is not None and scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            self._take(_client(scope), self.per_minute, time.perf_counter())
        await self.app(scope, receive, send)

    def _take(self, client: str, per_minute: int, now: float) -> None:
        left, since = self._left.pop(client, (float(per_minute), now))
        left = min(left + (now - since) * per_minute / MINUTE_S, per_minute)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        if not allowed:
            wait_s = max(math.ceil((1 - left) * MINUTE_S / per_minute), 1)
            raise RateLimited(
                f"More than {per_minute} requests a minute, which is the limit of a key. Try again in {wait_s} s.",
                retry_after_s=wait_s,
            )


def _client(scope: Scope) -> str:
    key: str | None = scope["state"].get("key_digest")
    address = scope.get("client")
    return f"key {key}" if key is not None else f"address {address[0] if address else ''}"
