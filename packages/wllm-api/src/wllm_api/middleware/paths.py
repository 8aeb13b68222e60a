"""Repairs paths that clients build by joining: a base URL that ends in a slash makes `//v1/models`."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send


class Paths:
    """Collapses repeated slashes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] == "http" and "//" in scope["path"]:
            # In place: whoever is further out reads the path and the route from the same scope.
            scope["path"] = re.sub("/{2,}", "/", scope["path"])
        await self.app(scope, receive, send)
