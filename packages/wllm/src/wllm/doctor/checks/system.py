"""The operating system and the Python."""

from __future__ import annotations

import platform
import struct
import sys
import sysconfig
from collections.abc import Iterator

from wllm.doctor import windows
from wllm.doctor.facts import Facts
from wllm.doctor.finding import Finding, Verdict

_MACHINES = ("AMD64", "x86_64")
_OLDEST_GLIBC = (2, 28)
_OLDEST_WINDOWS, _WINDOWS_11 = 19041, 22000
_PYTHONS = ((3, 11), (3, 13))
_INSTALL = "install Python 3.11, 3.12 or 3.13, 64 bits, from https://www.python.org/downloads"


def operating_system(_: Facts) -> Iterator[Finding]:
    """Windows 10 or 11, or a Linux with glibc, on x86-64."""
    machine = platform.machine()
    if machine not in _MACHINES:
        reason = "wLLM is tested on x86-64 only; torch has other wheels, or none, for other processors"
        yield Finding("processor", Verdict.WARNING, machine or "unknown", reason)
    if sys.platform == "win32":
        yield _windows(windows.build())
    elif sys.platform == "linux":
        yield _linux(platform.release(), platform.libc_ver())
    else:
        reason = "wLLM is made for Windows and Linux; nobody tries it elsewhere"
        yield Finding("operating system", Verdict.WARNING, platform.platform(), reason)


def _windows(build: int) -> Finding:
    name = f"Windows {11 if build >= _WINDOWS_11 else 10}, build {build}"
    if build < _OLDEST_WINDOWS:
        reason = f"torch and NVIDIA's drivers are made for Windows 10 of build {_OLDEST_WINDOWS} and newer"
        return Finding("operating system", Verdict.WARNING, name, reason, "run Windows Update")
    return Finding("operating system", Verdict.OK, name)


def _linux(release: str, libc: tuple[str, str]) -> Finding:
    kind, version = libc
    name = f"Linux {release}, {kind or 'unknown C library'} {version}".rstrip()
    if kind != "glibc":
        reason = "torch has wheels for Linux with glibc only"
        return Finding("operating system", Verdict.WARNING, name, reason, "use a distribution with glibc, not musl")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_GLIBC:
        reason = "the wheels of torch need glibc 2.28 or newer"
        return Finding("operating system", Verdict.PROBLEM, name, reason, "use a newer release of the distribution")
    if "microsoft" in release.lower():
        reason = "this is WSL2; wLLM also runs on Windows itself"
        return Finding("operating system", Verdict.NOTE, name, reason)
    return Finding("operating system", Verdict.OK, name)


def python(_: Facts) -> Iterator[Finding]:
    """A version that is tested, 64 bits, not from Microsoft's store, with the lock that torch expects."""
    bits, version = 8 * struct.calcsize("P"), sys.version_info[:2]
    seen = f"Python {platform.python_version()}, {bits} bits, {sys.prefix}"
    oldest, newest = _PYTHONS
    if bits != 64:
        yield Finding("Python", Verdict.PROBLEM, seen, "torch has no wheels for 32 bits", _INSTALL)
    elif version < oldest:
        yield Finding("Python", Verdict.PROBLEM, seen, "wLLM needs Python 3.11", _INSTALL)
    elif version > newest:
        yield Finding("Python", Verdict.WARNING, seen, "wLLM is tested on Python 3.11 to 3.13", _INSTALL)
    elif sysconfig.get_config_var("Py_GIL_DISABLED"):
        reason = "it is the free-threaded build, on which wLLM is not tested"
        yield Finding("Python", Verdict.WARNING, seen, reason, _INSTALL)
    elif "WindowsApps" in sys.base_prefix:
        reason = "it is from Microsoft's store: Windows redirects what it writes to AppData, and paths get long"
        yield Finding("Python", Verdict.WARNING, seen, reason, _INSTALL)
    else:
        yield Finding("Python", Verdict.OK, seen)
