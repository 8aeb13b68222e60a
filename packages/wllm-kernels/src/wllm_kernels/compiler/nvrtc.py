"""NVRTC, NVIDIA's run-time compiler, through ctypes: CUDA C++ in, machine code or PTX out. No toolkit, no GPU.

The build uses the one of the pip wheel `nvidia-cuda-nvrtc-cu12` (`find_wheel`), whose code older drivers load too; the
fallback on a user's machine uses torch's own. A compilation runs without the GIL, so threads compile side by side.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wllm_kernels.errors import CompilationFailed

WHEEL = "nvidia-cuda-nvrtc-cu12"
WHEEL_VERSION = "12.9"
_LIBRARY = "bin/nvrtc64_120_0.dll" if sys.platform == "win32" else "lib/libnvrtc.so.12"


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code (or PTX) of one module, and what the compiler said about it."""

    code: bytes
    log: str


class Nvrtc:
    """A loaded NVRTC library of `version` "12.9", for example; `path` is a file, or a bare name the system finds."""

    def __init__(self, path: Path | str) -> None:
        """Raises `CompilationFailed` where the library cannot be loaded."""
        self.path = Path(path)
        try:
            if self.path.is_absolute():
                # NVRTC opens its built-in functions by bare name, which is found only if the file is loaded already.
                self._builtins = [ctypes.CDLL(str(file)) for file in _builtins_beside(self.path)]
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise CompilationFailed(
                f"NVRTC cannot be loaded: {path}: {error}. Reinstall the package that this file came with."
            ) from error
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = f"{major.value}.{minor.value}"

    def compile(self, source: str, name: str, target: str, options: Sequence[str] = ()) -> Compiled:
        """Compile for `target`: machine code for "sm_86", PTX for "compute_80".

        Raises `CompilationFailed` with the compiler's words, which name file and line.
        """
        program = ctypes.c_void_p()
        arguments = [f"--gpu-architecture={target}".encode(), *(option.encode() for option in options)]
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None
            ),
            "nvrtcCreateProgram",
        )
        try:
            result = self._library.nvrtcCompileProgram(
                program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments)
            )
            log = self._read(program, "ProgramLog").rstrip(b"\0\n").decode(errors="replace")
            if result != 0:
                raise CompilationFailed(
                    f"NVRTC {self.version} cannot compile {name} for {target}: {self._name_of(result)}\n{log}\n"
                    "Correct the source at the lines named above, or the target."
                )
            return Compiled(self._read(program, "CUBIN" if target.startswith("sm_") else "PTX"), log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, buffer), what)
        return buffer.raw

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            raise CompilationFailed(f"{what} failed: {self._name_of(result)} in {self.path}. Reinstall this NVRTC.")

    def _name_of(self, result: int) -> str:
        name: bytes = self._library.nvrtcGetErrorString(result)
        return name.decode()


def _builtins_beside(library: Path) -> list[Path]:
    return [file for file in sorted(library.parent.glob("*nvrtc-builtins*")) if ".alt." not in file.name]


def find_wheel() -> Path:
    """The library inside the pip wheel; raises `CompilationFailed` where that is missing or of another version."""
    fix = f'Install it with: python -m pip install "{WHEEL}=={WHEEL_VERSION}.*"'
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError as error:
        raise CompilationFailed(
            f"Building the kernels needs the compiler package {WHEEL}, which is missing. {fix}"
        ) from error
    if not wheel.version.startswith(f"{WHEEL_VERSION}."):
        raise CompilationFailed(f"Building the kernels needs {WHEEL} {WHEEL_VERSION}, found {wheel.version}. {fix}")
    return Path(str(wheel.locate_file("nvidia/cuda_nvrtc"))).resolve() / _LIBRARY
