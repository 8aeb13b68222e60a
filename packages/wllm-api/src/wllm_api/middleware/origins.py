"""Decides which web pages may call the server, answers preflights, and marks every answer for the allowed ones.

Without it any page that a user opens could drive the server on that user's machine. Programs that are not browsers
send no Origin and are not touched.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wllm_api.http_errors import Forbidden
from wllm_api.middleware.hosts import is_address

EXPOSED = "X-Request-Id, X-Wllm-Ignored, Retry-After"


class Origins:
    """Allows pages of this machine (any port), and `allowed`; "*" in it allows any page. Others get a 403."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self.app = app
        self.allowed = {origin.rstrip("/").lower() for origin in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        origin = headers.get("origin") if headers is not None else None
        if headers is None or origin is None:
            await self.app(scope, receive, send)
            return
        if not self._is_allowed(origin):
            raise Forbidden(f"The web origin '{origin}' may not use this server. Allow it at start if you trust it.")
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(origin, headers)(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["Access-Control-Allow-Origin"] = origin
                answer["Access-Control-Expose-Headers"] = EXPOSED
                answer.add_vary_header("Origin")
            await send(message)

        await self.app(scope, receive, marked)

    def _is_allowed(self, origin: str) -> bool:
        if "*" in self.allowed or origin.lower() in self.allowed:
            return True
        try:
            parts = urlsplit(origin)
            name = parts.hostname or ""
        except ValueError:
            return False
        if parts.scheme not in ("http", "https"):
            return False
        return name == "localhost" or name.endswith(".localhost") or (is_address(name) and _is_loopback(name))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _preflight(origin: str, asked: Headers) -> Response:
    headers = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Allow-Headers": asked.get("access-control-request-headers", "authorization, content-type"),
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    if asked.get("access-control-request-private-network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=headers)
