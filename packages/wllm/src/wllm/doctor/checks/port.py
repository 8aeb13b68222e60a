"""The port of `wllm serve`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from wllm.doctor import windows
from wllm.doctor.facts import Facts
from wllm.doctor.finding import Finding, Verdict


def port(facts: Facts) -> Iterator[Finding]:
    """Free on both loopbacks, as the server binds them; else the program that has it, or the reserved range."""
    from wllm_api.http_errors import PortUnavailable
    from wllm_api.sockets import bind_sockets

    name = f"port {facts.port}"
    try:
        for sock in bind_sockets("127.0.0.1", facts.port):
            sock.close()
    except PortUnavailable as error:
        fix = "wllm serve --port PORT takes another one"
        yield Finding(name, Verdict.WARNING, _holder(facts.port) or str(error), "wllm serve cannot listen there", fix)
    else:
        yield Finding(name, Verdict.OK, "free")


def _holder(number: int) -> str:
    if sys.platform == "win32":
        for first, last in windows.excluded_ports():
            if first <= number <= last:
                return f"in the range {first}-{last} that Windows reserves, for Hyper-V, WSL or Docker as a rule"
    try:
        import psutil

        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr[1] == number and connection.status == psutil.CONN_LISTEN:
                return f"taken by {_program(connection.pid)}"
    except Exception:  # not allowed, or no psutil: the server's own message serves
        return ""
    return ""


def _program(pid: int | None) -> str:
    import psutil

    if not pid:  # nobody's, or process 0, where the system does not tell
        return "a program that this user may not see"
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return f"process {pid}"
