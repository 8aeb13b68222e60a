"""GGUF headers: what a cut, foreign or hostile file claims is refused by name, before memory is taken for it."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wllm_runtime.checkpoint import CheckpointError, DamagedCheckpoint, UnsupportedCheckpoint, open_checkpoint
from wllm_runtime.checkpoint.gguf_file.header import read_header

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def head(*, version: int = 3, tensors: int = 0, keys: int = 0, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys)


def key(name: str, kind: int, data: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + data


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write_file(data: bytes) -> Path:
        path = tmp_path / "модель.gguf"
        path.write_bytes(data)
        return path

    return write_file


def test_values_of_every_kind(write: Any) -> None:
    data = head(keys=5)
    data += key("int", U32, struct.pack("<I", 7)) + key("float", F32, struct.pack("<f", 0.5))
    data += key("flag", BOOL, b"\1") + key("text", STRING, text("日本"))
    data += key("list", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text(""))
    assert read_header(write(data)).metadata == {
        "int": 7,
        "float": 0.5,
        "flag": True,
        "text": "日本",
        "list": ["a", ""],
    }


@pytest.mark.parametrize("kind", sorted(set(range(13)) - {STRING, ARRAY}))
def test_scalars_and_arrays_of_numbers(kind: int, write: Any) -> None:
    dtype = "B b <H <h <I <i <f ? s a <Q <q <d".split()[kind]
    one = struct.pack(dtype, 1)
    data = head(keys=2) + key("one", kind, one) + key("many", ARRAY, struct.pack("<IQ", kind, 3) + one * 3)
    metadata = read_header(write(data)).metadata
    assert metadata["one"] == 1 and isinstance(metadata["many"], np.ndarray) and metadata["many"].tolist() == [1] * 3


def test_shapes_are_row_major_and_offsets_aligned(write: Any) -> None:
    data = head(tensors=2) + tensor("a", [4, 2]) + tensor("b", [2], offset=32)
    start = -(-len(data) // 32) * 32
    header = read_header(write(data.ljust(start + 40, b"\0")))
    assert header.tensors["a"].shape == (2, 4) and header.tensors["a"].offset == start
    assert header.tensors["b"].offset == start + 32 and header.tensors["b"].nbytes == 8


REFUSED = {
    "magic": (head(magic=b"GGML"), "begins with b'GGML'"),
    "version 1": (head(version=1), "GGUF version 1"),
    "future version": (head(version=9), "GGUF version 9"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "absurd tensor count": (head(tensors=1 << 60), f"claims {1 << 60} tensors"),
    "absurd key count": (head(keys=1 << 60), f"claims {1 << 60} metadata keys"),
    "absurd key length": (head(keys=1) + struct.pack("<Q", 1 << 62), "ends inside its header"),
    "absurd string": (head(keys=1) + key("k", STRING, struct.pack("<Q", 1 << 40)), "ends inside its header"),
    "absurd array": (head(keys=1) + key("k", ARRAY, struct.pack("<IQ", U64, 1 << 60)), "ends inside its header"),
    "absurd strings": (head(keys=1) + key("k", ARRAY, struct.pack("<IQ", STRING, 1 << 60)), "entries of 'k'"),
    "array of arrays": (head(keys=1) + key("k", ARRAY, struct.pack("<IQ", ARRAY, 1)), "array of arrays under 'k'"),
    "unknown value type": (head(keys=1) + key("k", 77, b""), "unknown type 77 under 'k'"),
    "key twice": (head(keys=2) + key("k", BOOL, b"\1") * 2, "the key 'k' twice"),
    "no UTF-8": (head(keys=1) + key("k", STRING, text(b"\xff")), "not UTF-8"),
    "odd alignment": (head(keys=1) + key("general.alignment", U32, struct.pack("<I", 3)), "general.alignment 3"),
    "no alignment": (head(keys=1) + key("general.alignment", U32, struct.pack("<I", 0)), "general.alignment 0"),
    "five dimensions": (head(tensors=1) + tensor("t", [1] * 5), "dimensions of 't'"),
    "unknown tensor type": (head(tensors=1) + tensor("t", [32], kind=999), "'t' has type 999"),
    "overflowing shape": (head(tensors=1) + tensor("t", [1 << 40, 1 << 40]), "gives 't' the shape"),
    "row of a broken block": (head(tensors=1) + tensor("t", [33], kind=2), "does not fit its type Q4_0"),
    "unaligned tensor": (head(tensors=1) + tensor("t", [1], offset=7), "'t' at 7"),
    "tensor beyond the end": (head(tensors=1) + tensor("t", [1000]), "ends before its tensor 't'"),
    "tensor far beyond": (head(tensors=1) + tensor("t", [1], offset=1 << 62), "ends before its tensor 't'"),
    "tensor twice": (head(tensors=2) + tensor("t", [1]) * 2 + b"\0" * 64, "the tensor 't' twice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str, write: Any) -> None:
    data, words = REFUSED[case]
    path = write(data)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert words in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    "claim",
    [
        key("k", ARRAY, struct.pack("<IQ", U64, 1 << 27)),
        key("k", ARRAY, struct.pack("<IQ", STRING, 1 << 30)),
        key("k", STRING, struct.pack("<Q", 1 << 30)),
    ],
)
def test_a_claim_takes_no_memory(claim: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    with path.open("wb") as file:
        file.write(head(keys=1) + claim)
        file.truncate(9 << 27)  # sparse where the system can: the file really is as long as it claims
    tracemalloc.start()
    try:
        with pytest.raises(DamagedCheckpoint):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_cut_anywhere(make_model: Any, write_gguf: Any, tmp_path: Path) -> None:
    data = write_gguf(make_model()).read_bytes()
    path = tmp_path / "cut.gguf"
    rng = random.Random(0)
    for cut in [0, 1, 3, 4, 8, 23, 24, len(data) - 1, *(rng.randrange(len(data)) for _ in range(150))]:
        path.write_bytes(data[:cut])
        with pytest.raises(DamagedCheckpoint, match="Incomplete download"):
            open_checkpoint(path)


def test_flipped_bytes_end_in_a_checkpoint_error_or_a_model(make_model: Any, write_gguf: Any, tmp_path: Path) -> None:
    data = write_gguf(make_model()).read_bytes()
    path = tmp_path / "flipped.gguf"
    rng = random.Random(1)
    refused = 0
    for _ in range(200):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(4, len(data) // 4)] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            checkpoint = open_checkpoint(path)
        except CheckpointError:
            refused += 1
        else:
            assert checkpoint.weights is not None
            checkpoint.weights.close()
    assert refused > 10


def test_big_endian_is_its_own_error(write: Any) -> None:
    with pytest.raises(UnsupportedCheckpoint):
        read_header(write(REFUSED["big-endian"][0]))
