"""Weights from safetensors files: every header is read and checked at once, a tensor when it is asked for.

Owns the list of tensors: every shard is there, whole, and holds what the index says, so that a broken download stops
the start and not the first answer. Keeps no file open between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.piece_reader import read_pieces
from wllm_runtime.checkpoint.pieces import Piece, cut
from wllm_runtime.checkpoint.safetensors_header import StoredTensor, read_header
from wllm_runtime.checkpoint.shards import find_shards


class SafetensorsReader:
    """The tensors of a model directory; raises `DamagedCheckpoint` on opening if any file of it is not whole."""

    def __init__(self, directory: Path) -> None:
        self._tensors: dict[str, StoredTensor] = {}
        shards = find_shards(directory)
        for file in shards.files:
            for tensor in _header_of(file):
                # A tensor that is stored twice is taken from where the index says.
                if shards.placement.get(tensor.name, file) == file:
                    self._tensors[tensor.name] = tensor
        for name, file in shards.placement.items():
            if name not in self._tensors:
                raise DamagedCheckpoint(
                    f"The index of {directory} places the tensor {name!r} in {file.name}, which does not hold it. "
                    "Incomplete download? Fetch the model again."
                )

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def names(self) -> Sequence[str]:
        """All tensor names, shard by shard in file order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""
        return self._tensors[name].shape

    def nbytes(self, name: str) -> int:
        """The tensor's bytes."""
        return self._tensors[name].nbytes

    def read(self, name: str) -> torch.Tensor:
        """The tensor in the file's dtype; raises as `read_into` does."""
        tensor = self._tensors[name]
        out = torch.empty(tensor.shape, dtype=tensor.dtype)
        read_pieces(cut(tensor, out), out.device, lambda _: None)
        return out

    def read_into(self, targets: Mapping[str, torch.Tensor], on_progress: Callable[[int], None]) -> None:
        """Read with several threads, straight into targets that are contiguous and lie on one device.

        Raises `DamagedCheckpoint` if a file cannot be read or has changed since it was opened, and before any reading
        `UnsupportedCheckpoint` for a tensor of other than real numbers, which mean nothing without their scales.
        """
        for name in targets:
            tensor = self._tensors[name]
            if not tensor.dtype.is_floating_point:
                raise UnsupportedCheckpoint(
                    f"{tensor.file.path} stores the tensor {name!r} as {tensor.dtype}, so its weights are quantised in "
                    "a way that its config.json does not tell. Use the unquantised model or a GGUF file of it."
                )
        devices = {target.device for target in targets.values()}
        assert len(devices) <= 1, f"targets of one call lie on one device, not {devices}"
        for device in devices:
            read_pieces(self._pieces(targets), device, on_progress)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _pieces(self, targets: Mapping[str, torch.Tensor]) -> Iterator[Piece]:
        for name, tensor in self._tensors.items():
            if name in targets:
                yield from cut(tensor, targets[name])


def _header_of(file: Path) -> Sequence[StoredTensor]:
    try:
        return read_header(file)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"The shard {file} is missing. Incomplete download? Fetch it again.") from error
