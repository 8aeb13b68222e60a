"""Asks for an API key, where the server has any; only the health probes go without.

With several keys, each key's requests get their own prefix-cache salt, so that no one can find out by timing what
others have asked.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from wllm_api.http_errors import Unauthorized

OPEN_PATHS = frozenset({"/health", "/ping"})


class Keys:
    """Checks `Authorization: Bearer KEY` or `X-Api-Key: KEY` in constant time; sets `key_digest` and `cache_salt`."""

    def __init__(self, app: ASGIApp, keys: Iterable[str] = ()) -> None:
        self.app = app
        self.keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] == "http" and self.keys and scope["path"] not in OPEN_PATHS:
            digest = self._digest(_given(Headers(scope=scope)))
            scope["state"]["key_digest"] = digest
            scope["state"]["cache_salt"] = digest if len(self.keys) > 1 else ""
        await self.app(scope, receive, send)

    def _digest(self, given: list[bytes]) -> str:
        if not given:
            raise Unauthorized("No API key was given. Send the header 'Authorization: Bearer YOUR_KEY'.")
        # Every key is compared, so that the time says nothing about which one nearly matched.
        matches = [key for candidate in given for key in self.keys if secrets.compare_digest(key, candidate)]
        if not matches:
            raise Unauthorized("The API key is wrong. Send a key that the server was started with.")
        return hashlib.sha256(matches[0]).hexdigest()[:16]


def _given(headers: Headers) -> list[bytes]:
    # OpenAI's clients send the one header, Anthropic's the other or both. Header bytes arrive as Latin-1, whatever the
    # client meant by them.
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = [token if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
    return [key.strip().encode("latin-1") for key in given if key.strip()]
