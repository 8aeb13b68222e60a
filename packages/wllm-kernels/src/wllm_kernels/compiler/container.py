"""The container: all compiled modules of a wheel in one file, `kernels.wk` inside the package.

A reader takes the index and then single modules, so a process unpacks only what it runs. The layout, little-endian:

    8 bytes   b"wllm-wk1"
    4 bytes   length of the index
    index     JSON: "compiler" (its version), "sources" {family: digest}, "modules" [[family, target, offset, size]]
    modules   one xz stream each; offsets count from the end of the index

The same modules give the same bytes. Targets: "sm_86" (machine code) or "compute_80" (PTX, for tests and benchmarks).
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wllm_kernels.compiler.families import Family
from wllm_kernels.compiler.sources import source_of
from wllm_kernels.errors import KernelError

FILE_NAME = "kernels.wk"
BUILT = Path(__file__).parents[1] / FILE_NAME
_MAGIC = b"wllm-wk1"
_LENGTH = 4


class Container:
    """A container on disk. Raises `FileNotFoundError` where there is none, `KernelError` for any other file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            magic, length = file.read(len(_MAGIC)), int.from_bytes(file.read(_LENGTH), "little")
            try:
                index: dict[str, Any] = json.loads(file.read(length)) if magic == _MAGIC else {}
                self.compiler: str = index["compiler"]
                self.sources: dict[str, str] = index["sources"]
                self._places = {(family, target): place for family, target, *place in index["modules"]}
            except (ValueError, KeyError, TypeError) as error:
                raise KernelError(
                    f"{path} is no kernel container of this version: it begins with {magic!r}. Reinstall wllm-kernels."
                ) from error
        self._start = len(_MAGIC) + _LENGTH + length

    def targets(self, family: str) -> tuple[str, ...]:
        """The targets that a family has code for."""
        return tuple(target for name, target in self._places if name == family)

    def packed(self, family: str, target: str) -> bytes:
        """A module's xz stream; `KeyError` if it is not there."""
        offset, size = self._places[family, target]
        with self.path.open("rb") as file:
            file.seek(self._start + offset)
            return file.read(size)

    def code(self, family: str, target: str) -> bytes:
        """A module's machine code or PTX; `KeyError` if it is not there, `KernelError` if the file is damaged."""
        try:
            return lzma.decompress(self.packed(family, target))
        except lzma.LZMAError as error:
            raise KernelError(
                f"{self.path} is damaged at family {family}, {target}: {error}. Reinstall wllm-kernels."
            ) from error

    def is_current(self, family: Family) -> bool:
        """Whether it was built from the sources that are in csrc/ now."""
        return self.sources.get(family.name) == source_of(family).digest


def write(path: Path, compiler: str, sources: Mapping[str, str], modules: Mapping[tuple[str, str], bytes]) -> None:
    """Write a container of xz streams by (family, target); `sources` are the families' digests."""
    entries, offset = [], 0
    for family, target in sorted(modules):
        size = len(modules[family, target])
        entries.append([family, target, offset, size])
        offset += size
    index = json.dumps({"compiler": compiler, "modules": entries, "sources": sources}, sort_keys=True).encode()
    content = b"".join(modules[key] for key in sorted(modules))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_MAGIC + len(index).to_bytes(_LENGTH, "little") + index + content)
