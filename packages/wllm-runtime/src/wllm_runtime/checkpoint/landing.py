"""Where the bytes of a piece land on their way to its tensor: one `Landing` for each thread that reads.

On the CPU that is the tensor itself, or a scratch buffer where the dtypes differ. For CUDA it is a ring of pinned
buffers: while the device copies one of them on a side stream, the thread fills the next, and the dtype is converted on
the device. A buffer is filled again only after the event behind its copy. Reads no file; called by `read_pieces`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from wllm_runtime.checkpoint.pieces import PIECE_BYTES, Piece

_HOST_READERS = 4
# 8 x 2 x 4 MiB: a small part of what may be pinned on Windows, where all processes share half of the memory.
_DEVICE_READERS = 8
_RING = 2


class Landing(Protocol):
    """Room for one piece after another; used by one thread."""

    def room(self, piece: Piece) -> memoryview:
        """Where to put the piece's bytes."""

    def deliver(self, piece: Piece) -> None:
        """Put the bytes that are in the piece's room into its target; they may arrive later."""


@contextmanager
def landings_for(device: torch.device) -> Iterator[Sequence[Landing]]:
    """A landing for each thread that reads for tensors on `device`; at the end everything delivered has arrived."""
    if device.type != "cuda":
        yield [HostLanding() for _ in range(_HOST_READERS)]
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    # What was queued before may still use the memory that the targets now have.
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        yield [PinnedLanding(stream) for _ in range(_DEVICE_READERS)]
    finally:
        # The pinned buffers must outlive the copies from them, after an error too.
        stream.synchronize()


class HostLanding:
    """For targets on the CPU."""

    def __init__(self) -> None:
        self._scratch: torch.Tensor | None = None

    def room(self, piece: Piece) -> memoryview:
        """The target's own memory where the dtypes agree."""
        if piece.source.dtype == piece.target.dtype:
            return _bytes_of(piece.target)
        if self._scratch is None:
            self._scratch = torch.empty(PIECE_BYTES, dtype=torch.uint8)
        return _bytes_of(self._scratch[: piece.nbytes])

    def deliver(self, piece: Piece) -> None:
        """Convert the scratch buffer into the target, if the bytes are not there already."""
        if piece.source.dtype != piece.target.dtype:
            assert self._scratch is not None, "room is made before a piece is delivered"
            piece.target.copy_(self._scratch[: piece.nbytes].view(piece.source.dtype))


class PinnedLanding:
    """For targets on a CUDA device; copies on `stream`."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._buffers = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_RING)]
        # Blocking: a thread that spins on an event takes a core from those that read.
        self._copied = [torch.cuda.Event(blocking=True) for _ in range(_RING)]  # type: ignore[no-untyped-call]
        self._next = 0

    def room(self, piece: Piece) -> memoryview:
        """The next buffer of the ring, once its last copy is done."""
        self._copied[self._next].synchronize()
        return _bytes_of(self._buffers[self._next][: piece.nbytes])

    def deliver(self, piece: Piece) -> None:
        """Queue the copy, and the conversion behind it."""
        values = self._buffers[self._next][: piece.nbytes].view(piece.source.dtype)
        with torch.cuda.stream(self._stream):
            if values.dtype != piece.target.dtype:
                # copy_ between devices would convert on the host, through memory that is not pinned.
                values = values.to(piece.target.device, non_blocking=True)
            piece.target.copy_(values, non_blocking=True)
            self._copied[self._next].record(self._stream)
        self._next = (self._next + 1) % _RING


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data
