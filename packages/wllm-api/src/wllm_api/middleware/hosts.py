"""Refuses requests that came through a foreign host name: a web page whose name was re-pointed at this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from wllm_api.http_errors import Forbidden, InvalidRequest


class Hosts:
    """Allows IP addresses (a re-pointed page needs a name), this machine's own names, and `allowed`."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self.app = app
        self.names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in allowed)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] == "http":
            hosts = Headers(scope=scope).getlist("host")
            if len(hosts) > 1:
                raise InvalidRequest("The request has several Host headers. Send one.")
            if hosts and not self._is_ours(hosts[0]):
                raise Forbidden(f"The host name '{hosts[0]}' is not served here. Use 127.0.0.1, or allow the name.")
        await self.app(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        return name in self.names or name.endswith(".localhost") or is_address(name)


def host_name(host: str) -> str:
    """The name of a Host header: no port, no brackets, lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def is_address(name: str) -> bool:
    """Whether `name` is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
