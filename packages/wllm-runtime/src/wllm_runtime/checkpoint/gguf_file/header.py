"""The header of a GGUF file: metadata and the list of tensors.

Owns every check on what a file claims before memory is taken for it: a hostile or cut file ends in a named error.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, UnsupportedCheckpoint

MAX_HEADER_BYTES = 512 << 20
MAX_STRINGS = 4 << 20  # in one array; the largest vocabularies have half a million merges
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 48

Value = bool | int | float | str | list[str] | np.ndarray

_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place: `shape` is row-major (GGUF lists the fastest dimension first), `offset` counts from byte 0."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """Metadata by key (numeric arrays as numpy arrays) and tensors by their GGUF names, in file order."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> Header:
    """Parses the header; raises `DamagedCheckpoint` or `UnsupportedCheckpoint` naming the file and the value."""
    with path.open("rb", buffering=1 << 20) as file:
        return _Parser(path, file).parse()


class _Parser:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self.file = file
        self.file_size = path.stat().st_size
        self.limit = min(self.file_size, MAX_HEADER_BYTES)
        self.position = 0

    def parse(self) -> Header:
        magic = self.take(4)
        if magic != b"GGUF":
            raise self.damaged(f"begins with {magic!r}, not b'GGUF'")
        version = self.number("<I")
        if version >> 16:
            raise UnsupportedCheckpoint(f"{self.path} is a big-endian GGUF file. Use a little-endian one.")
        if version not in (2, 3):
            raise UnsupportedCheckpoint(
                f"{self.path} has GGUF version {version}; wLLM reads 2 and 3. Convert the model again with a current "
                "converter, or update wLLM."
            )
        num_tensors = self.count("<Q", MAX_TENSORS, "tensors")
        num_keys = self.count("<Q", MAX_KEYS, "metadata keys")
        metadata: dict[str, Value] = {}
        for _ in range(num_keys):
            key = self.string()
            if key in metadata:
                raise self.damaged(f"holds the key {key!r} twice")
            metadata[key] = self.value(key)
        infos = [self.tensor() for _ in range(num_tensors)]
        return Header(self.path, metadata, self.placed(infos, self.alignment(metadata)))

    def alignment(self, metadata: dict[str, Value]) -> int:
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment % 8 or alignment > 1 << 20:
            raise self.damaged(f"has general.alignment {alignment!r}, which is no sensible multiple of 8")
        return alignment

    def placed(self, infos: list[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
        start = -(-self.position // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for info in infos:
            if info.name in tensors:
                raise self.damaged(f"holds the tensor {info.name!r} twice")
            if info.offset % alignment:
                raise self.damaged(f"places {info.name!r} at {info.offset}, which is no multiple of {alignment}")
            end = start + info.offset + info.nbytes
            if end > self.file_size:
                raise self.damaged(f"ends before its tensor {info.name!r}, which needs {end} bytes")
            tensors[info.name] = TensorInfo(info.name, info.shape, info.kind, start + info.offset, info.nbytes)
        return tensors

    def tensor(self) -> TensorInfo:
        name = self.string()
        rank = self.count("<I", MAX_DIMENSIONS, f"dimensions of {name!r}")
        shape = tuple(self.number("<Q") for _ in range(rank))[::-1]
        number, offset = self.number("<I"), self.number("<Q")
        try:
            kind = GGMLQuantizationType(number)
            block, size = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise UnsupportedCheckpoint(
                f"{self.path}: the tensor {name!r} has type {number}, which the installed gguf package does not know. "
                "Use another quantisation, or `pip install -U gguf`."
            ) from None
        elements = math.prod(shape)
        if elements > MAX_ELEMENTS or (shape and shape[-1] % block):
            raise self.damaged(f"gives {name!r} the shape {list(shape)}, which does not fit its type {kind.name}")
        return TensorInfo(name, shape, kind, offset, elements // block * size)

    def value(self, key: str) -> Value:
        kind = self.kind(key)
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind != GGUFValueType.ARRAY:
            scalar: bool | int | float = self.scalars(_SCALARS[kind], 1)[0].item()
            return scalar
        kind = self.kind(key)
        if kind == GGUFValueType.ARRAY:
            raise self.damaged(f"has an array of arrays under {key!r}, which no known key is")
        if kind == GGUFValueType.STRING:
            return [self.string() for _ in range(self.count("<Q", MAX_STRINGS, f"entries of {key!r}"))]
        return self.scalars(_SCALARS[kind], self.number("<Q"))

    def kind(self, key: str) -> GGUFValueType:
        number = self.number("<I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.damaged(f"has a value of unknown type {number} under {key!r}") from None

    def scalars(self, dtype: str, count: int) -> np.ndarray:
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype)

    def string(self) -> str:
        data = self.take(self.number("<Q"))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"has text that is not UTF-8 at byte {self.position - len(data)}") from None

    def count(self, format: str, most: int, what: str) -> int:
        number = self.number(format)
        if number > most:
            raise self.damaged(f"claims {number} {what} (at most {most} are believable)")
        return number

    def number(self, format: str) -> int:
        value: int = struct.unpack(format, self.take(struct.calcsize(format)))[0]
        return value

    def take(self, length: int) -> bytes:
        if length > self.limit - self.position:
            raise self.damaged(
                f"ends inside its header: {length} bytes are due at byte {self.position} of {self.file_size}"
                if self.limit == self.file_size
                else f"has a header of more than {MAX_HEADER_BYTES} bytes"
            )
        data = self.file.read(length)
        if len(data) != length:
            raise self.damaged(f"shrank while it was read, at byte {self.position}")
        self.position += length
        return data

    def damaged(self, what: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(
            f"{self.path} ({self.file_size} bytes) is not a sound GGUF file: it {what}. Incomplete download? "
            "Fetch it again."
        )
