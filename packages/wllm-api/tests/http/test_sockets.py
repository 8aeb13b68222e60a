"""Both loopbacks are ours, and an address that cannot be had is explained before anything loads."""

import asyncio
import socket
from typing import Any

import pytest

from wllm_api.http_errors import PortUnavailable
from wllm_api.protocol import PromptProtocol
from wllm_api.sockets import bind_sockets, is_loopback


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_default_is_both_loopbacks_on_one_port(host: str) -> None:
    sockets = bind_sockets(host, 0)
    try:
        names = [sock.getsockname() for sock in sockets]
        assert [name[0] for name in names] == ["127.0.0.1", "::1"][: len(names)]
        assert len({name[1] for name in names}) == 1
        assert len(names) == (2 if has_ipv6_loopback() else 1)
    finally:
        for sock in sockets:
            sock.close()


def test_no_ipv6_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def only_ipv4(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", only_ipv4)
    sockets = bind_sockets("127.0.0.1", 0)
    assert len(sockets) == 1
    sockets[0].close()


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortUnavailable, match=rf"Port {port} on 127\.0\.0\.1 is in use"):
            bind_sockets("127.0.0.1", port)


@pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6 loopback")
def test_port_in_use_on_the_other_loopback() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as taken:
        taken.bind(("::1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortUnavailable, match=rf"Port {port} on ::1 is in use"):
            bind_sockets("127.0.0.1", port)


def test_reserved_range_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reserved(OSError):
        winerror = 10013

    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            raise Reserved(13, "forbidden")

    monkeypatch.setattr(socket, "socket", Refusing)
    monkeypatch.setattr("wllm_api.sockets.sys.platform", "win32")
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR, raising=False)
    with pytest.raises(PortUnavailable, match="excludedportrange"):
        bind_sockets("127.0.0.1", 50000)


@pytest.mark.parametrize("port", [-1, 65_536, 10**9])
def test_no_such_port(port: int) -> None:
    with pytest.raises(PortUnavailable, match=str(port)):
        bind_sockets("127.0.0.1", port)


def test_second_server_on_a_port_that_is_not_served_yet() -> None:
    first = bind_sockets("127.0.0.1", 0)
    try:
        with pytest.raises(PortUnavailable, match="in use"):
            bind_sockets("127.0.0.1", first[0].getsockname()[1])
    finally:
        for sock in first:
            sock.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_foreign_address(host: str) -> None:
    with pytest.raises(PortUnavailable, match="Cannot listen on"):
        bind_sockets(host, 0)


@pytest.mark.parametrize(("host", "expected"), [
    ("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True),
    ("0.0.0.0", False), ("::", False), ("192.168.1.2", False), ("box", False),
])  # fmt: skip
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_connections_send_at_once(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it every answer on a connection in use is some 40 ms late, and every token of a stream may be."""
    seen = []
    take = PromptProtocol.connection_made

    def watched(protocol: PromptProtocol, transport: asyncio.Transport) -> None:
        take(protocol, transport)
        seen.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(PromptProtocol, "connection_made", watched)
    with start_server() as client:
        assert client.get("/health").status_code == 200
    assert seen
    assert all(seen)
