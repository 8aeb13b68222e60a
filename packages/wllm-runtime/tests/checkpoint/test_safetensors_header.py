"""Headers of safetensors files: read as safetensors' own reader reads them, and refused where they lie."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from wllm_runtime.checkpoint import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.safetensors_header import _DTYPES, read_header

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("seed", range(5))
def test_tensors_lie_where_the_other_reader_finds_them(seed: int, tmp_path: Path) -> None:
    numbers = random.Random(seed)
    tensors = {
        f"tensor ü {index}": torch.zeros([numbers.randrange(4) for _ in range(numbers.randrange(4))], dtype=dtype)
        for index, dtype in enumerate(numbers.choices(list(_DTYPES.values()), k=20))
    }
    for tensor in tensors.values():
        tensor.reshape(-1).view(torch.uint8).copy_(torch.randint(0, 2, (tensor.nbytes,)))
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    data = path.read_bytes()
    with safe_open(path, framework="pt") as other:
        found = read_header(path)
        assert sorted(tensor.name for tensor in found) == sorted(other.keys())
        for tensor in found:
            theirs = other.get_tensor(tensor.name)
            assert (tensor.dtype, tensor.shape) == (theirs.dtype, tuple(theirs.shape))
            stored = data[tensor.offset : tensor.offset + tensor.nbytes]
            assert stored == theirs.reshape(-1).view(torch.uint8).numpy().tobytes()


DAMAGED: dict[str, tuple[object, bytes]] = {
    "not JSON": (b"{'a': 1}", b""),
    "not UTF-8": (b'{"\xff": 1}', b""),
    "no object": ([F32], bytes(8)),
    "nested too deep": (b"[" * 100_000, b""),
    "a string for a tensor": ({"a": "F32"}, b""),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, bytes(8)),
    "one offset": ({"a": {**F32, "data_offsets": [8]}}, bytes(8)),
    "a negative size": ({"a": {**F32, "shape": [-1, -2]}}, bytes(8)),
    "a size that is true": ({"a": {**F32, "shape": [True, 2]}}, bytes(8)),
    "a size that is no integer": ({"a": {**F32, "shape": [2.0]}}, bytes(8)),
    "a range that runs backwards": ({"a": {**F32, "shape": [0], "data_offsets": [8, 0]}}, bytes(8)),
    "a range that does not fit the shape": ({"a": {**F32, "shape": [3]}}, bytes(8)),
    "a hole in front": ({"a": {**F32, "data_offsets": [4, 12]}}, bytes(12)),
    "a hole between": ({"a": F32, "b": {**F32, "data_offsets": [12, 20]}}, bytes(20)),
    "an overlap": ({"a": F32, "b": {**F32, "data_offsets": [4, 12]}}, bytes(12)),
    "a range beyond the file": ({"a": F32}, bytes(7)),
    "bytes behind the last tensor": ({"a": F32}, bytes(9)),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_header_that_lies_is_refused_as_by_the_other_reader(case: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", *DAMAGED[case])
    with pytest.raises(DamagedCheckpoint, match=r"x\.safetensors \(\d+ bytes\).*Fetch it again"):
        read_header(path)
    with pytest.raises((SafetensorError, ValueError)), safe_open(path, framework="pt"):
        pass


def test_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    # The other reader takes the last one.
    header = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":%s}' % json.dumps(F32).encode()
    with pytest.raises(DamagedCheckpoint, match="the name 'a' stands twice"):
        read_header(write(tmp_path / "x.safetensors", header, bytes(8)))


@pytest.mark.parametrize("length", [90, 1 << 40, (1 << 64) - 1])
def test_header_longer_than_the_file_is_not_read(length: int, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match=f"header would take {length} bytes"):
        read_header(write(tmp_path / "x.safetensors", {"a": F32}, length=length))


@pytest.mark.parametrize("size", [0, 7])
def test_file_without_a_header_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes(size))
    with pytest.raises(DamagedCheckpoint, match=rf"\({size} bytes\)"):
        read_header(path)


def test_empty_file_of_no_tensors_is_whole(tmp_path: Path) -> None:
    assert read_header(write(tmp_path / "x.safetensors", {"__metadata__": {"format": "pt"}})) == []


def test_dtype_that_torch_lacks_is_named(tmp_path: Path) -> None:
    header: dict[str, Any] = {"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}
    with pytest.raises(UnsupportedCheckpoint, match=r"'a' has the dtype 'F6_E2M3'.*Supported: .*BF16"):
        read_header(write(tmp_path / "x.safetensors", header, bytes(3)))
