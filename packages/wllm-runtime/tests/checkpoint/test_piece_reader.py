"""Many threads fill many tensors: whatever the pieces, every byte lands in its place, and what fails says so."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from wllm_runtime.checkpoint import DamagedCheckpoint, landing, pieces
from wllm_runtime.checkpoint.landing import HostLanding
from wllm_runtime.checkpoint.safetensors_reader import SafetensorsReader

ROWS = (1, 7, 300, 0, 129)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, in a folder whose name has a space and an umlaut."""
    directory = tmp_path / "große Dateien"
    directory.mkdir()
    for part in (1, 2):
        tensors = {f"{part}.{rows}": torch.randn(rows, 33).bfloat16() for rows in ROWS}
        save_file(tensors, directory / f"model-0000{part}-of-00002.safetensors")
    return directory


def expected(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors, through safetensors' own reader."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def small_pieces(monkeypatch: pytest.MonkeyPatch, nbytes: int = 256) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", nbytes)
    monkeypatch.setattr(landing, "PIECE_BYTES", nbytes)


def no_progress(_: int) -> None:
    pass


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("piece_bytes", [8, 256, 4 << 20])
def test_targets_equal_the_other_reader(
    dtype: torch.dtype, piece_bytes: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, piece_bytes)
    reader, done = SafetensorsReader(folder), []
    targets = {name: torch.full(reader.shape(name), torch.nan, dtype=dtype) for name in reader.names()}
    reader.read_into(targets, done.append)
    for name, tensor in expected(folder).items():
        assert torch.equal(targets[name], tensor.to(dtype))
    assert sum(done) == reader.num_bytes and max(done) <= piece_bytes


def test_views_of_one_parameter_are_filled_in_place(folder: Path) -> None:
    fused = torch.full((7 + 129, 33), torch.nan)
    first, second = fused.split((7, 129))
    SafetensorsReader(folder).read_into({"1.7": first, "2.129": second}, no_progress)
    tensors = expected(folder)
    assert torch.equal(fused, torch.cat((tensors["1.7"], tensors["2.129"])).float())


def test_all_threads_read_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    readers = landing._HOST_READERS
    meeting, met = threading.Barrier(readers, timeout=60), threading.local()
    plain = HostLanding.deliver

    def deliver(self: HostLanding, piece: pieces.Piece) -> None:
        if not hasattr(met, "already"):
            met.already = meeting.wait()
        plain(self, piece)

    monkeypatch.setattr(HostLanding, "deliver", deliver)
    reader = SafetensorsReader(folder)
    reader.read_into({"1.300": torch.empty(300, 33)}, no_progress)
    assert readers > 1 and meeting.n_waiting == 0


def failing_in(thread: str, error: Exception) -> Callable[..., None]:
    """A `HostLanding.deliver` that fails in the threads whose name has `thread`, and holds up all others till then."""
    failed = threading.Event()

    def deliver(self: HostLanding, piece: pieces.Piece) -> None:
        if thread in threading.current_thread().name:
            failed.set()
            raise error
        assert failed.wait(60)

    return deliver


@pytest.mark.parametrize("thread", ["MainThread", "wllm-read"])
def test_error_in_any_thread_surfaces_and_stops_the_others(
    thread: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    monkeypatch.setattr(HostLanding, "deliver", failing_in(thread, MemoryError("no more")))
    reader, done = SafetensorsReader(folder), []
    with pytest.raises(MemoryError, match="no more"):
        reader.read_into({name: torch.empty(reader.shape(name)) for name in reader.names()}, done.append)
    assert sum(done) < reader.num_bytes / 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wllm-read")]


def test_file_cut_short_underneath_is_named(folder: Path) -> None:
    reader = SafetensorsReader(folder)
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DamagedCheckpoint, match=r"00002-of-00002\.safetensors changed .*Incomplete download\?"):
        reader.read("2.300")


def test_file_rewritten_underneath_is_named_even_at_the_same_size(folder: Path) -> None:
    reader = SafetensorsReader(folder)
    file = folder / "model-00002-of-00002.safetensors"
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 2_000_000_000))
    with pytest.raises(DamagedCheckpoint, match=r"00002-of-00002\.safetensors changed"):
        reader.read("2.300")
    reader.read("1.300")


def test_file_that_ends_while_it_is_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    reader = SafetensorsReader(folder)
    file = folder / "model-00002-of-00002.safetensors"
    plain, calls = HostLanding.room, []

    def room(self: HostLanding, piece: pieces.Piece) -> memoryview:
        calls.append(piece)
        if len(calls) == 2:  # the file was opened and found as it was for the first piece
            os.truncate(file, 200)
        return plain(self, piece)

    monkeypatch.setattr(HostLanding, "room", room)
    monkeypatch.setattr(landing, "_HOST_READERS", 1)
    with pytest.raises(DamagedCheckpoint, match=r"00002-of-00002\.safetensors ends at byte \d+, inside .*'2\.300'"):
        reader.read("2.300")


def test_file_that_cannot_be_read_is_named(folder: Path) -> None:
    reader = SafetensorsReader(folder)
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(DamagedCheckpoint, match=r"00001-of-00002\.safetensors could not be read at byte \d+ .*'1\.7'"):
        reader.read("1.7")
