"""Weights from safetensors files, through safetensors' own reader.

Owns the list of tensors, made and checked when it is opened: every shard is there, whole, and holds what the index
says, so that a broken download stops the start and not the first answer. Keeps one shard open at a time and reads by
position: a mapping of the whole file would charge its size to the commit limit on Windows. Used by one thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from wllm_runtime.checkpoint.errors import DamagedCheckpoint
from wllm_runtime.checkpoint.shards import find_shards


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...


class _Handle(Protocol):  # what we use of safe_open, whose own stubs are untyped
    def offset_keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    shape: tuple[int, ...]
    nbytes: int


class SafetensorsReader:
    """The tensors of a model directory; raises `DamagedCheckpoint` on opening if any file of it is not whole."""

    def __init__(self, directory: Path) -> None:
        self._entries: dict[str, _Entry] = {}
        self._open_file: Path | None = None
        self._handle: _Handle | None = None
        shards = find_shards(directory)
        for file in shards.files:
            self._add_file(file, shards.placement)
        for name, file in shards.placement.items():
            if name not in self._entries:
                raise DamagedCheckpoint(
                    f"The index of {directory} places the tensor {name!r} in {file.name}, which does not hold it. "
                    "Incomplete download? Fetch the model again."
                )
        self.close()

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self._entries.values())

    def names(self) -> Sequence[str]:
        """All tensor names, shard by shard in file order."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""
        return self._entries[name].shape

    def nbytes(self, name: str) -> int:
        """The tensor's bytes."""
        return self._entries[name].nbytes

    def read(self, name: str) -> torch.Tensor:
        """The tensor in the file's dtype; raises `DamagedCheckpoint` if the file has changed underneath."""
        file = self._entries[name].file
        try:
            return self._handle_of(file).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise _damaged(file, f"reading {name!r}: {error}") from error

    def close(self) -> None:
        """Release the open shard."""
        self._open_file = self._handle = None

    def _handle_of(self, file: Path) -> _Handle:
        if self._handle is None or self._open_file != file:
            self.close()
            self._handle = cast("_Handle", safe_open(file, framework="pt", backend="pread"))
            self._open_file = file
        return self._handle

    def _add_file(self, file: Path, placement: dict[str, Path]) -> None:
        try:
            handle = self._handle_of(file)
            for name in handle.offset_keys():
                if placement.get(name, file) == file:  # a tensor stored twice is taken from where the index says
                    part = handle.get_slice(name)
                    shape = tuple(part.get_shape())
                    self._entries[name] = _Entry(file, shape, math.prod(shape) * _bits(part.get_dtype()) // 8)
        except FileNotFoundError as error:
            raise DamagedCheckpoint(f"The shard {file} is missing. Incomplete download? Fetch it again.") from error
        except (SafetensorError, OSError) as error:
            raise _damaged(file, str(error)) from error


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)  # "BF16", "F8_E4M3", "I64"; only BOOL has none
    return int(digits.group()) if digits else 8


def _damaged(file: Path, cause: str) -> DamagedCheckpoint:
    size = file.stat().st_size if file.is_file() else 0
    return DamagedCheckpoint(
        f"{file} ({size} bytes) is not a whole safetensors file: {cause}. Incomplete download? Fetch it again."
    )
