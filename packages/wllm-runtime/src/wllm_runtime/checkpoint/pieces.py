"""Tensors of files cut into pieces: the unit that one thread reads and that one host buffer holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from wllm_runtime.checkpoint.safetensors_header import StoredTensor

# Large enough that a read costs more than its call, small enough that a ring of them is a few MiB a thread. A multiple
# of every item size.
PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """`nbytes` bytes from byte `offset` of the file on: values of the dtype of `source`, for the flat `target`."""

    source: StoredTensor
    offset: int
    nbytes: int
    target: torch.Tensor


def cut(source: StoredTensor, target: torch.Tensor) -> Iterator[Piece]:
    """The pieces of a tensor that fills the contiguous `target`; none for an empty one."""
    flat = target.view(-1)
    itemsize = source.dtype.itemsize
    for start in range(0, source.nbytes, PIECE_BYTES):
        nbytes = min(PIECE_BYTES, source.nbytes - start)
        first = start // itemsize
        yield Piece(source, source.offset + start, nbytes, flat[first : first + nbytes // itemsize])
