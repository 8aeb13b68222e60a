"""A driver library without a GPU (driver.c), built by the C compiler of the machine, and a torch that goes with it.

Where there is no compiler, a library of each set of options may lie in the folder that WLLM_STUB_DRIVERS names:
`stub.dll`, `stub-DWITHOUT_LIBRARIES.dll`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

_COMPILER = shutil.which("gcc") or shutil.which("cc")
_BUILT = os.environ.get("WLLM_STUB_DRIVERS")
AVAILABLE = bool(_COMPILER or _BUILT)


class Stub(ctypes.Structure):
    """The state of driver.c: settings, then what was recorded."""

    _fields_ = (
        ("init_result", ctypes.c_int),
        ("version", ctypes.c_int),
        ("capability", ctypes.c_int * 4),
        ("max_shared_bytes", ctypes.c_int),
        ("load_result", ctypes.c_int),
        ("launch_result", ctypes.c_int),
        ("load_milliseconds", ctypes.c_int),
        ("time_limit", ctypes.c_int),
        ("capturing", ctypes.c_int),
        ("missing_kernel", ctypes.c_char * 64),
        ("parameter_bytes", ctypes.c_int),
        ("loads", ctypes.c_int),
        ("functions", ctypes.c_int),
        ("contexts", ctypes.c_int),
        ("launches", ctypes.c_int),
        ("image", ctypes.c_char * 64),
        ("shared_bytes_allowed", ctypes.c_int),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_ulonglong),
        ("context", ctypes.c_ulonglong),
        ("function", ctypes.c_ulonglong),
        ("overlaps", ctypes.c_int),
        ("parameters", ctypes.c_ubyte * 256),
    )

    def reset(self) -> None:
        """An RTX 4070 with a recent driver, and nothing recorded."""
        ctypes.memset(ctypes.addressof(self), 0, ctypes.sizeof(self))
        self.version, self.max_shared_bytes = 12090, 99 * 1024
        self.capability[:] = (89, 89, 89, 89)


class StubLibrary:
    """The loaded library. `state` is live."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.state = Stub.in_dll(self.library, "stub")
        self.library.function_name.restype = ctypes.c_char_p
        self.library.function_name.argtypes = (ctypes.c_ulonglong,)
        self.library.make_current.argtypes = (ctypes.c_ulonglong,)

    def launched(self) -> str:
        """The kernel of the last launch."""
        return str(self.library.function_name(self.state.function).decode())


def build(folder: Path, *options: str) -> Path:
    """Compile driver.c into `folder`, or copy what was compiled elsewhere; `AVAILABLE` says whether it can be done."""
    path = folder / ("stub.dll" if sys.platform == "win32" else "libstub.so")
    if _BUILT:
        shutil.copyfile(Path(_BUILT) / f"stub{''.join(options)}{path.suffix}", path)
        return path
    assert _COMPILER is not None
    source = Path(__file__).with_name("driver.c")
    command = [_COMPILER, "-shared", "-fPIC", "-O1", *options, "-o", str(path), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    return path


def preload(folder: Path, version: int) -> str:
    """Build the library into `folder` and tell what a Python runs first that shall find it as its driver, with one GPU.

    Linux finds the driver of a program by LD_LIBRARY_PATH, which must name `folder`.
    """
    library = folder / ("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    build(folder).replace(library)
    return (
        "import ctypes\n"
        f"fields = (ctypes.c_int * 3).in_dll(ctypes.CDLL({str(library)!r}), 'stub')\n"
        f"fields[1], fields[2] = {version}, 89  # as in Stub\n"
    )


class StubTorch:
    """The part of torch that the loader uses: GPUs, the current one, and streams 7000, 7001, .."""

    def __init__(self, device_count: int = 1) -> None:
        self._device_count = device_count
        self.current = 0

    def check_build(self) -> None: ...

    def initialise(self, driver_version: int) -> None: ...

    def device_count(self) -> int:
        return self._device_count

    def current_device(self) -> int:
        return self.current

    def current_stream(self, index: int, /) -> int:
        return 7000 + index
