"""Gives every request an id, and every answer the headers that all have: its id, ignored fields, the charset of JSON.

JSON is UTF-8 without a charset, but Windows PowerShell 5.1 takes it for Latin-1 then.
"""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wllm_api.error_bodies import is_anthropic

MAX_ID_LENGTH = 128
_JSON = "application/json"


class Identity:
    """Keeps a client's own printable id; sets `scope["state"]["request_id"]`, and `status` when there is one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _own_id(Headers(scope=scope).get("x-request-id")) or uuid.uuid4().hex

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                state["status"] = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if is_anthropic(scope["path"]):
                    headers["Request-Id"] = request_id  # the name that Anthropic's clients read
                if ignored := state.get("ignored_fields"):
                    headers["X-Wllm-Ignored"] = ignored
                if headers.get("Content-Type") == _JSON:
                    headers["Content-Type"] = f"{_JSON}; charset=utf-8"
            await send(message)

        await self.app(scope, receive, named)


def _own_id(wanted: str | None) -> str | None:
    if wanted and len(wanted) <= MAX_ID_LENGTH and wanted.isascii() and wanted.isprintable():
        return wanted
    return None
