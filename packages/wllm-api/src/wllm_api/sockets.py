"""Binds the listening sockets before anything expensive starts, so that a taken port is told in the first second."""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Sequence

from wllm_api.http_errors import PortUnavailable

BACKLOG = 2048
LOOPBACKS = ("127.0.0.1", "::1")
WSAEACCES = 10013
WSAEADDRINUSE = 10048


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for `host`; for 127.0.0.1 and localhost both loopbacks, for port 0 a free port.

    Clients on Windows try ::1 first and lose two seconds a connection if nobody listens there. A machine without
    IPv6 is no error. Raises `PortUnavailable`.
    """
    if not 0 <= port <= 65_535:
        raise PortUnavailable(f"There is no port {port}. Choose one from 1 to 65535, or 0 for any that is free.")
    if host not in ("127.0.0.1", "localhost"):
        return [_bind(family, address, port) for family, address in _addresses(host, port)]
    first = _bind(socket.AF_INET, LOOPBACKS[0], port)
    bound_port = first.getsockname()[1]
    try:
        return [first, *_second_loopback(bound_port, chosen_freely=port == 0)]
    except PortUnavailable:
        first.close()
        raise


def _second_loopback(port: int, *, chosen_freely: bool) -> Sequence[socket.socket]:
    if not socket.has_ipv6:
        return ()
    try:
        return (_bind(socket.AF_INET6, LOOPBACKS[1], port),)
    except PortUnavailable as error:
        cause = error.__cause__
        in_use = isinstance(cause, OSError) and cause.errno in (errno.EADDRINUSE, errno.EACCES)
        if in_use and not chosen_freely:
            raise
        return ()


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise PortUnavailable(
            f"Cannot listen on '{host}': {error}. Use 127.0.0.1, or an address of this machine."
        ) from error
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _explained(error, address, port) from error
    try:
        if sys.platform == "win32":
            # Without it another program may bind the same port and take our clients.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
        # Linux lets two sockets bind one port until one of them listens. Clients wait here until the server accepts.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _explained(error, address, port) from error
    return sock


def _explained(error: OSError, address: str, port: int) -> PortUnavailable:
    code = getattr(error, "winerror", None) or error.errno
    if code in (errno.EADDRINUSE, WSAEADDRINUSE):
        why = f"Port {port} on {address} is in use by another program. Stop it, or choose another port."
    elif code in (errno.EACCES, WSAEACCES) and sys.platform == "win32":
        why = (
            f"Windows does not give out port {port} on {address} (error 10013): it is in a reserved range. See "
            "'netsh interface ipv4 show excludedportrange protocol=tcp', and choose a port outside."
        )
    elif code in (errno.EACCES, WSAEACCES):
        why = f"Port {port} on {address} needs more rights than this user has. Choose a port above 1023."
    else:
        why = (
            f"Cannot listen on {address}, port {port}: {error.strerror}. Use 127.0.0.1, or an address of this machine."
        )
    return PortUnavailable(why)
