"""Compiled modules, and the folder that keeps them: what was compiled once on this machine is read the next time.

The build and the fallback at run time share it. An entry is written under a temporary name and then renamed, so that
processes side by side see all of it or nothing; an entry that cannot be read counts as absent, a folder that cannot be
written costs time only.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wllm_kernels.compiler.nvrtc import Nvrtc
from wllm_kernels.compiler.sources import OPTIONS, Source

VARIABLE = "WLLM_KERNELS_CACHE"
# Its window holds a whole module: higher ones give the same size, later.
_PRESET = 6


@dataclass(frozen=True, slots=True)
class Module:
    """A family compiled for one target: the code as an xz stream, the compiler's log, the CPU time spent just now."""

    packed: bytes
    log: str
    cpu_seconds: float = 0.0

    @property
    def code(self) -> bytes:
        """The machine code or PTX."""
        return lzma.decompress(self.packed)


def folder() -> Path:
    """Where modules are kept: WLLM_KERNELS_CACHE, or `wllm/kernels` in the user's cache folder."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "wllm" / "kernels"


def compile_module(source: Source, target: str, compiler: Nvrtc, cache: Path | None) -> Module:
    """The module from `cache`, or compiled and put there; None compiles always. Raises `CompilationFailed`."""
    path = cache / f"{_key(source, target, compiler.version)}.module" if cache else None
    if path is not None and (found := _load(path)) is not None:
        return found
    module = _compile(source, target, compiler)
    if path is not None:
        _store(path, module)
    return module


def _compile(source: Source, target: str, compiler: Nvrtc) -> Module:
    start = time.thread_time()
    compiled = compiler.compile(source.text, source.family, target, OPTIONS)
    packed = lzma.compress(compiled.code, preset=_PRESET)
    return Module(packed, compiled.log, time.thread_time() - start)


def _key(source: Source, target: str, version: str) -> str:
    return (
        f"{source.family}-{target}-"
        + hashlib.sha256(f"{source.digest} {target} {version} {_PRESET}".encode()).hexdigest()[:24]
    )


def _load(path: Path) -> Module | None:
    try:
        header, _, packed = path.read_bytes().partition(b"\n")
        module = Module(packed, json.loads(header)["log"])
        module.code  # noqa: B018  (xz has a checksum: a torn or altered entry raises)
    except (OSError, ValueError, KeyError, TypeError, lzma.LZMAError):
        return None
    return module


def _store(path: Path, module: Module) -> None:
    content = json.dumps({"log": module.log}).encode() + b"\n" + module.packed
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            # On Windows this fails while another process reads the entry: then that one has what we have.
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
