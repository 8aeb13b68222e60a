"""GGUF weights: every type, against gguf's own dequantisation of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

from wllm_runtime.checkpoint import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.gguf_file import tensors as module
from wllm_runtime.checkpoint.gguf_file.header import read_header
from wllm_runtime.checkpoint.gguf_file.tensors import GgufReader

PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
UNREADABLE = {"Q8_1", "Q8_K", "Q1_0", "I8", "I16", "I32", "I64"}
Writer = Callable[..., GgufReader]
QUANTISED = sorted({kind.name for kind in GGMLQuantizationType} - set(PLAIN) - UNREADABLE)


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Writer]:
    """Writes a file with one tensor "t" of [rows, bytes of a row] and opens it."""
    readers: list[GgufReader] = []

    def write_file(
        raw: np.ndarray, kind: GGMLQuantizationType, interleaved: dict[str, int] | None = None
    ) -> GgufReader:
        path = tmp_path / "t.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("first", np.zeros(5, np.float32))  # so that "t" does not lie at the start
        writer.add_tensor("t", raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        readers.append(GgufReader(path, read_header(path).tensors, interleaved or {}))
        return readers[-1]

    yield write_file
    for reader in readers:
        reader.close()


def random_raw(kind: GGMLQuantizationType, rows: int, blocks: int) -> np.ndarray:
    """Rows of blocks with random codes and sane scales: any two bytes that are no finite half are made one."""
    rng = np.random.default_rng(0)
    _, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    raw[raw % 128 >= 120] -= 16  # exponents of all ones are NaN and infinity, in halves and in 8-bit scales
    return raw


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_type_equals_gguf(name: str, write: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = GGMLQuantizationType[name]
    block, _ = GGML_QUANT_SIZES[kind]
    raw = random_raw(kind, 7, 4)
    reader = write(raw, kind)
    expected = dequantize(raw, kind)
    assert np.isfinite(expected).all() and np.unique(expected).size > 2
    for slice_elements in (module._SLICE_ELEMENTS, 3 * block):  # the whole at once; slices that end inside rows
        monkeypatch.setattr(module, "_SLICE_ELEMENTS", slice_elements)
        read = reader.read("t")
        assert read.dtype == torch.float32 and tuple(read.shape) == reader.shape("t") == (7, 4 * block)
        assert np.array_equal(read.numpy(), expected)
    assert reader.nbytes("t") == raw.nbytes and reader.num_bytes == raw.nbytes + 20


@pytest.mark.parametrize("name", PLAIN)
def test_float_type_keeps_its_dtype(name: str, write: Writer) -> None:
    values = torch.randn(6, 5, dtype=torch.float64).to(PLAIN[name])
    kind = GGMLQuantizationType[name]
    raw = values.view(torch.uint8).numpy() if name == "BF16" else values.numpy()
    read = write(raw, kind).read("t")
    assert read.dtype == PLAIN[name] and torch.equal(read, values)


def test_quantised_values_are_near_the_original(write: Writer) -> None:
    values = np.random.default_rng(0).standard_normal((8, 64), dtype=np.float32)
    kind = GGMLQuantizationType.Q8_0
    read = write(quantize(values, kind), kind).read("t")
    assert np.abs(read.numpy() - values).max() < 0.02


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_type_that_cannot_be_dequantised_is_named(name: str, write: Writer) -> None:
    kind = GGMLQuantizationType[name]
    _, size = GGML_QUANT_SIZES[kind]
    with pytest.raises(UnsupportedCheckpoint, match=f"'t' has type {name}"):
        write(np.zeros((2, size), np.uint8), kind)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("shape", [(16, 3), (16,)])
def test_interleaved_rows_come_back_as_halves(heads: int, shape: tuple[int, ...], write: Writer) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    order = np.arange(16).reshape(heads, 2, -1).swapaxes(1, 2).ravel()
    reader = write(values[order], GGMLQuantizationType.F32, {"t": heads})
    assert np.array_equal(reader.read("t").numpy(), values)


def test_a_file_that_shrinks_is_named(write: Writer, tmp_path: Path) -> None:
    reader = write(np.ones((4, 4), np.float32), GGMLQuantizationType.F32)
    with (tmp_path / "t.gguf").open("r+b") as file:
        file.truncate((tmp_path / "t.gguf").stat().st_size - 40)
    with pytest.raises(DamagedCheckpoint, match=r"ends inside its tensor 't'"):
        reader.read("t")


def test_reading_after_close_is_an_error(write: Writer) -> None:
    reader = write(np.ones((4, 4), np.float32), GGMLQuantizationType.F32)
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.read("t")
