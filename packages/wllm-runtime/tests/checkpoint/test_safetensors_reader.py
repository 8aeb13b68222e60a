"""Weights of model directories: whole, sharded, and broken in the ways that downloads break."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file

from wllm_runtime.checkpoint import DamagedCheckpoint, ModelNotFound, UnsupportedCheckpoint, open_checkpoint
from wllm_runtime.checkpoint.safetensors_reader import SafetensorsReader

TENSORS = {
    "model.embed_tokens.weight": torch.randn(6, 4),
    "model.norm.weight": torch.randn(4, dtype=torch.bfloat16),
    "lm_head.weight": torch.randn(6, 4, dtype=torch.float16),
    "empty": torch.empty(0, 4),
    "scale": torch.tensor(0.5).to(torch.float8_e4m3fn),
    "flags": torch.tensor([True, False]),
}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    names = list(TENSORS)
    files = {f"model-0000{part + 1}-of-00002.safetensors": names[part::2] for part in range(2)}
    for file, held in files.items():
        save_file({name: TENSORS[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return tmp_path


def second_shard(directory: Path) -> Path:
    return directory / "model-00002-of-00002.safetensors"


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_tensors_equal_the_file(layout: str, request: pytest.FixtureRequest) -> None:
    reader = SafetensorsReader(request.getfixturevalue(layout))
    assert sorted(reader.names()) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        read = reader.read(name)
        assert read.dtype == tensor.dtype and reader.shape(name) == tuple(tensor.shape)
        assert torch.equal(read.view(torch.uint8) if read.dtype.itemsize == 1 else read, _bytes_if_small(tensor))
        assert reader.nbytes(name) == tensor.nbytes
    assert reader.num_bytes == sum(tensor.nbytes for tensor in TENSORS.values())
    reader.close()


def _bytes_if_small(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def test_names_come_in_file_order(tmp_path: Path) -> None:
    # safetensors stores wide types first: its own keys() sort by name, which is another order.
    save_file(
        {"a": torch.zeros(2, dtype=torch.uint8), "b": torch.zeros(2), "c": torch.zeros(2)}, tmp_path / "x.safetensors"
    )
    assert SafetensorsReader(tmp_path).names() == ["b", "c", "a"]


def test_a_read_tensor_belongs_to_the_caller(single: Path) -> None:
    reader = SafetensorsReader(single)
    reader.read("model.norm.weight").fill_(7)
    assert torch.equal(reader.read("model.norm.weight"), TENSORS["model.norm.weight"])


def test_missing_shard_is_named(sharded: Path) -> None:
    """R40."""
    second_shard(sharded).unlink()
    with pytest.raises(DamagedCheckpoint, match=r"00002-of-00002.*[Ii]ncomplete download\?"):
        SafetensorsReader(sharded)


@pytest.mark.parametrize("keep", [0.5, 0.99, 0.0])
def test_cut_shard_is_named(sharded: Path, keep: float) -> None:
    """R40: cut to half, to nearly all, to nothing."""
    data = second_shard(sharded).read_bytes()
    second_shard(sharded).write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(DamagedCheckpoint, match=r"00002-of-00002.*[Ii]ncomplete download\?"):
        SafetensorsReader(sharded)


def test_name_in_the_index_and_in_no_shard_is_named(sharded: Path) -> None:
    """R40."""
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index["weight_map"]["model.ghost.weight"] = second_shard(sharded).name
    path.write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(DamagedCheckpoint, match=r"model\.ghost\.weight.*[Ii]ncomplete download\?"):
        SafetensorsReader(sharded)


@pytest.mark.parametrize("file", ["../model.safetensors", "..\\x.safetensors", "C:x.safetensors", "weights.bin", 3])
def test_index_cannot_point_outside(sharded: Path, file: object) -> None:
    index = {"weight_map": {"a": file}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(DamagedCheckpoint, match="is no name of a safetensors file"):
        SafetensorsReader(sharded)


@pytest.mark.parametrize(("part", "name"), [(1, "model.norm.weight"), (2, "model.embed_tokens.weight")])
def test_a_tensor_stored_twice_is_read_from_where_the_index_says(part: int, name: str, sharded: Path) -> None:
    other = sharded / f"model-0000{part}-of-00002.safetensors"
    tensors = load(other.read_bytes())  # not mapped: Windows would not let it be replaced
    assert name not in tensors
    save_file({**tensors, name: torch.zeros(4)}, other)
    assert torch.equal(SafetensorsReader(sharded).read(name), TENSORS[name])


def test_numbered_shards_without_an_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    assert sorted(SafetensorsReader(sharded).names()) == sorted(TENSORS)
    second_shard(sharded).unlink()
    with pytest.raises(DamagedCheckpoint, match=r"part 2 of 2.*[Ii]ncomplete download\?"):
        SafetensorsReader(sharded)


def test_unrelated_files_without_an_index_are_not_guessed(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({name: torch.zeros(1)}, tmp_path / name)
    with pytest.raises(DamagedCheckpoint, match=r"a\.safetensors, b\.safetensors"):
        SafetensorsReader(tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(UnsupportedCheckpoint, match=r"pytorch_model\.bin.*run code"):
        SafetensorsReader(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no weights"):
        SafetensorsReader(tmp_path)


def test_file_that_changes_underneath(single: Path) -> None:
    reader = SafetensorsReader(single)
    (single / "model.safetensors").write_bytes(b"short")
    with pytest.raises(DamagedCheckpoint, match="Incomplete download"):
        reader.read("lm_head.weight")


def test_a_tied_model_that_stores_its_head_lists_it(model_dir: Path) -> None:
    file = model_dir / "model.safetensors"
    tensors = load(file.read_bytes())
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file)
    weights = open_checkpoint(model_dir).weights
    assert weights is not None and "lm_head.weight" in weights.names()
