"""Landings for CUDA: no buffer of the ring is filled again before its copy; on a GPU every byte lands in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from wllm_runtime.checkpoint import landing, pieces
from wllm_runtime.checkpoint.landing import PinnedLanding
from wllm_runtime.checkpoint.piece_reader import read_pieces
from wllm_runtime.checkpoint.safetensors_header import read_header
from wllm_runtime.checkpoint.safetensors_reader import SafetensorsReader


class LateStream:
    """A stream that puts everything off: a copy runs when an event behind it, or the stream, is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.waited_for: list[object] = []
        self.ran = 0
        self._queue: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def queue(self, copy: Callable[[], object]) -> None:
        with self._lock:
            self._queue.append(copy)

    def mark(self) -> int:
        with self._lock:
            return self.ran + len(self._queue)

    def run_until(self, mark: int) -> None:
        with self._lock:
            while self.ran < mark:
                self._queue.pop(0)()
                self.ran += 1

    def synchronize(self) -> None:
        self.run_until(self.mark())

    def wait_stream(self, other: object) -> None:
        self.waited_for.append(other)


class LateEvent:
    """An event of a `LateStream`."""

    def __init__(self, blocking: bool) -> None:
        assert blocking
        self._recorded: tuple[LateStream, int] | None = None

    def record(self, stream: LateStream) -> None:
        self._recorded = stream, stream.mark()

    def synchronize(self) -> None:
        if self._recorded is not None:
            stream, mark = self._recorded
            stream.run_until(mark)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[LateStream]:
    """torch.cuda with late streams; collects those that are made. Tensors stay on the CPU."""
    made: list[LateStream] = []
    current = threading.local()
    empty, copy = torch.empty, torch.Tensor.copy_

    def stream_of(device: torch.device) -> LateStream:
        made.append(LateStream(device))
        return made[-1]

    @contextmanager
    def on(stream: LateStream) -> Iterator[None]:
        current.stream = stream
        yield
        current.stream = None

    def copy_late(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        stream = getattr(current, "stream", None)
        if stream is None:
            return copy(self, source)
        assert non_blocking, "a copy that blocks stops the thread that should read"
        stream.queue(lambda: copy(self, source))
        return self

    monkeypatch.setattr(torch.cuda, "Stream", stream_of)
    monkeypatch.setattr(torch.cuda, "Event", LateEvent)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the current stream")
    monkeypatch.setattr(torch.Tensor, "copy_", copy_late)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options))
    return made


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_buffer_is_filled_again_only_after_its_copy(
    dtype: torch.dtype, streams: list[LateStream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 256)
    monkeypatch.setattr(landing, "PIECE_BYTES", 256)
    file = tmp_path / "model.safetensors"
    save_file({f"t{rows}": torch.randn(rows, 33).bfloat16() for rows in (1, 7, 300, 0, 129)}, file)
    targets = {tensor.name: torch.full(tensor.shape, torch.nan, dtype=dtype) for tensor in read_header(file)}
    work = [piece for tensor in read_header(file) for piece in pieces.cut(tensor, targets[tensor.name])]
    read_pieces(iter(work), torch.device("cuda"), lambda _: None)
    for name, tensor in load_file(file).items():
        assert torch.equal(targets[name], tensor.to(dtype))
    (stream,) = streams
    assert stream.ran == len(work) > 2 * landing._RING * landing._DEVICE_READERS
    assert stream.waited_for == ["the current stream"]


def test_copies_that_were_queued_before_an_error_are_waited_for(
    streams: list[LateStream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 256)
    monkeypatch.setattr(landing, "_DEVICE_READERS", 1)
    save_file({"t": torch.randn(10, 64)}, tmp_path / "model.safetensors")
    plain = PinnedLanding.deliver

    def deliver(self: PinnedLanding, piece: pieces.Piece) -> None:
        plain(self, piece)
        raise MemoryError("no more")

    monkeypatch.setattr(PinnedLanding, "deliver", deliver)
    (tensor,) = read_header(tmp_path / "model.safetensors")
    with pytest.raises(MemoryError):
        read_pieces(pieces.cut(tensor, torch.empty(10, 64)), torch.device("cuda"), lambda _: None)
    assert streams[0].ran == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_device_targets_equal_the_other_reader(dtype: torch.dtype, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    tensors: dict[str, Any] = {f"t{index}": torch.randn(2000 + index, 1111).bfloat16() for index in range(40)}
    save_file(tensors, tmp_path / "model.safetensors")
    reader = SafetensorsReader(tmp_path)
    targets = {name: torch.full(reader.shape(name), torch.nan, dtype=dtype, device="cuda") for name in tensors}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    reader.read_into(targets, lambda _: None)
    for name, tensor in tensors.items():
        assert torch.equal(targets[name].cpu(), tensor.to(dtype))
    staged = 0 if dtype == torch.bfloat16 else landing._DEVICE_READERS * pieces.PIECE_BYTES
    assert torch.cuda.max_memory_allocated() - before <= staged
