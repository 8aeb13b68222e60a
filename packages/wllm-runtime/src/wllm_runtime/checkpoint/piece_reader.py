"""Threads that read the pieces of files.

Owns the threads and their file handles. Each thread opens a file for itself and seeks in it: Windows has no read at a
position, and a shared handle would need a lock. Nothing is mapped: a mapping of a whole file would charge its size to
the commit limit on Windows. Called by the safetensors reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO

import torch

from wllm_runtime.checkpoint.errors import DamagedCheckpoint
from wllm_runtime.checkpoint.landing import Landing, landings_for
from wllm_runtime.checkpoint.pieces import Piece
from wllm_runtime.checkpoint.safetensors_header import FileState, file_state


def read_pieces(pieces: Iterator[Piece], device: torch.device, on_progress: Callable[[int], None]) -> None:
    """Fill the targets, all on `device`; `on_progress` gets the bytes of each piece, one call at a time.

    Returns when every target holds its values; raises `DamagedCheckpoint` where a file cannot be read or has changed.
    """
    queue = _Queue(pieces, on_progress)
    with landings_for(device) as landings:
        with ThreadPoolExecutor(len(landings), thread_name_prefix="wllm-read") as threads:
            others = [threads.submit(_read_all, queue, landing) for landing in landings[1:]]
            # This thread reads too: Ctrl+C reaches it between two pieces, and on Windows would not reach it in a wait.
            _read_all(queue, landings[0])
        for other in others:
            other.result()


class _Queue:
    """The pieces that nobody has taken yet, and the progress of those that were."""

    def __init__(self, pieces: Iterator[Piece], on_progress: Callable[[int], None]) -> None:
        self._pieces = pieces
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._stopped = False

    def take(self) -> Piece | None:
        with self._lock:
            return None if self._stopped else next(self._pieces, None)

    def done(self, piece: Piece) -> None:
        with self._lock:
            self._on_progress(piece.nbytes)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True


class _Handle:
    """The file that a thread has open: one at a time, since the pieces come file by file."""

    def __init__(self) -> None:
        self._state: FileState | None = None
        self._file: FileIO | None = None

    def fill(self, view: memoryview, piece: Piece) -> None:
        file = self._open(piece.source.file)
        file.seek(piece.offset)
        done = 0
        while done < len(view):
            count = file.readinto(view[done:])
            if not count:
                raise DamagedCheckpoint(
                    f"{piece.source.file.path} ends at byte {piece.offset + done}, inside its tensor "
                    f"{piece.source.name!r}. Incomplete download? Fetch it again."
                )
            done += count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self, state: FileState) -> FileIO:
        if self._file is None or self._state != state:
            self.close()
            self._file = state.path.open("rb", buffering=0)
            self._state = state
            now = file_state(state.path, self._file.fileno())
            if now != state:
                raise DamagedCheckpoint(
                    f"{state.path} changed while the model was loaded: it had {state.size} bytes, now {now.size}. "
                    "Incomplete download? Start again when nothing writes to it."
                )
        return self._file


def _read_all(queue: _Queue, landing: Landing) -> None:
    handle = _Handle()
    try:
        while (piece := queue.take()) is not None:
            try:
                handle.fill(landing.room(piece), piece)
            except OSError as error:
                raise DamagedCheckpoint(
                    f"{piece.source.file.path} could not be read at byte {piece.offset} (tensor "
                    f"{piece.source.name!r}): {error}. Check the disk, or fetch the file again."
                ) from error
            landing.deliver(piece)
            queue.done(piece)
    except BaseException:
        queue.stop()
        raise
    finally:
        handle.close()
