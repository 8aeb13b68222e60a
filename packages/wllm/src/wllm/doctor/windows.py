"""What only Windows can be asked: the registry, DLLs, code pages, reserved ports. Called on Windows, and by tests."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

_ELSEWHERE = "only Windows can be asked for this"
_NETSH_SECONDS = 20
_CONTROL = r"SYSTEM\CurrentControlSet\Control"


def build() -> int:
    """The number of the Windows build: 19045 is Windows 10 22H2, 22000 the first Windows 11."""
    if sys.platform != "win32":
        raise OSError(_ELSEWHERE)
    return sys.getwindowsversion().build


def missing_dlls(names: tuple[str, ...]) -> list[str]:
    """Those that the loader does not find."""
    return [name for name in names if not _loads(name)]


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def long_paths_enabled() -> bool:
    """Whether paths may have more than 260 characters."""
    return _registry_number("FileSystem", "LongPathsEnabled") == 1


def hardware_scheduling() -> bool | None:
    """Whether the GPU schedules its own work; None where the driver decides."""
    number = _registry_number("GraphicsDrivers", "HwSchMode")
    return None if number is None else number == 2


def _registry_number(folder: str, name: str) -> int | None:
    if sys.platform != "win32":
        raise OSError(_ELSEWHERE)
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, rf"{_CONTROL}\{folder}") as key:
            return int(winreg.QueryValueEx(key, name)[0])
    except FileNotFoundError:
        return None


def console_code_page() -> int:
    """The code page of the console's output, 65001 for UTF-8; 0 without a console."""
    if sys.platform != "win32":
        raise OSError(_ELSEWHERE)
    return int(ctypes.windll.kernel32.GetConsoleOutputCP())


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX. psutil asks the performance counters instead, which some machines have switched off."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("physical", ctypes.c_uint64),
        ("free_physical", ctypes.c_uint64),
        ("commit_limit", ctypes.c_uint64),
        ("free_commit", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 3),
    )


def page_file_bytes() -> int:
    """What programs may be promised beyond the main memory."""
    if sys.platform != "win32":
        raise OSError(_ELSEWHERE)
    status = _MemoryStatus(size=ctypes.sizeof(_MemoryStatus))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        raise ctypes.WinError()
    return int(max(status.commit_limit - status.physical, 0))


def excluded_ports() -> list[tuple[int, int]]:
    """Ranges of TCP ports, both ends included, that nothing may listen on; Hyper-V, WSL and Docker take some.

    Empty where netsh is missing or does not answer.
    """
    command = ["netsh", "interface", "ipv4", "show", "excludedportrange", "protocol=tcp"]
    # The code page of its output is the console's; only digits are read.
    try:
        done = subprocess.run(command, capture_output=True, encoding="ascii", errors="replace", timeout=_NETSH_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return port_ranges(done.stdout)


def port_ranges(text: str) -> list[tuple[int, int]]:
    """The ranges in what netsh prints, in any language: lines of two numbers, with a star where one was set by hand."""
    found = re.findall(r"^\s*(\d{1,5})\s+(\d{1,5})\s*\*?\s*$", text, re.MULTILINE)
    return [(int(first), int(last)) for first, last in found]
