"""The header of a safetensors file: which tensor lies where.

Format (the safetensors project's README): eight bytes with the header's length, little-endian; a JSON object of names
with dtype, shape and byte range; then the tensors' bytes, without gaps. All of it is checked here, so that nobody
behind this file meets a range that leaves the file or does not fit its shape. Reads no tensor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeGuard

import torch

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, UnsupportedCheckpoint

_LENGTH_BYTES = 8
# The format's own limit; a length beyond it is that of another kind of file.
_MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was when its header was read: `size` in bytes and the time of its last change."""

    path: Path
    size: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place: `nbytes` bytes of `dtype` from byte `offset` of the file on."""

    name: str
    file: FileState
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def file_state(path: Path, descriptor: int) -> FileState:
    """The state of the open file `descriptor`."""
    status = os.fstat(descriptor)
    return FileState(path, status.st_size, status.st_mtime_ns)


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of the file in file order; raises `DamagedCheckpoint`, or `UnsupportedCheckpoint` for a dtype."""
    with path.open("rb") as file:
        state = file_state(path, file.fileno())
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if state.size < _LENGTH_BYTES or length > min(_MAX_HEADER_BYTES, state.size - _LENGTH_BYTES):
            _refuse(state, f"its header would take {length} bytes")
        text = file.read(length)
    start = _LENGTH_BYTES + length
    tensors = sorted(_tensors(text, state, start), key=lambda tensor: (tensor.offset, tensor.nbytes))
    _check_cover(tensors, state, start)
    return tensors


def _tensors(text: bytes, state: FileState, start: int) -> list[StoredTensor]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        _refuse(state, f"its header is no JSON: {error}", error)
    if not isinstance(header, dict):
        _refuse(state, f"its header holds {type(header).__name__}, not an object")
    return [_tensor(name, value, state, start) for name, value in header.items() if name != _METADATA]


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return values


def _tensor(name: str, value: object, state: FileState, start: int) -> StoredTensor:
    fields = value if isinstance(value, dict) else {}
    kind, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(kind, str) or not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        _refuse(state, f"the tensor {name!r} is described by {value!r}")
    dtype = _DTYPES.get(kind)
    if dtype is None:
        raise UnsupportedCheckpoint(
            f"{state.path}: the tensor {name!r} has the dtype {kind!r}, which wLLM does not read. Supported: "
            f"{', '.join(_DTYPES)}. Use another version of the model."
        )
    begin, end = offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        _refuse(state, f"the tensor {name!r} of {kind} {shape} lies in bytes {begin} to {end}")
    return StoredTensor(name, state, dtype, tuple(shape), start + begin, end - begin)


def _sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _check_cover(tensors: Sequence[StoredTensor], state: FileState, start: int) -> None:
    position = start
    for tensor in tensors:
        if tensor.offset != position:
            _refuse(state, f"the tensor {tensor.name!r} begins at byte {tensor.offset}, not at {position}")
        position += tensor.nbytes
    if position != state.size:
        _refuse(state, f"its tensors end at byte {position}")


def _refuse(state: FileState, cause: str, error: Exception | None = None) -> NoReturn:
    raise DamagedCheckpoint(
        f"{state.path} ({state.size} bytes) is not a whole safetensors file: {cause}. Incomplete download? "
        "Fetch it again."
    ) from error
