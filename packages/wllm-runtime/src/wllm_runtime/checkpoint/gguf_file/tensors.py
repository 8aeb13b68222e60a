"""Weights of a GGUF file under their Hugging Face names, dequantised as they are read.

Owns the open file; reads by position through a lock, so that any thread may read. Dequantises in slices, since numpy's
temporaries take several times the size of what they work on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.gguf_file.header import TensorInfo

_SLICE_ELEMENTS = 1 << 18

_PLAIN = {
    GGMLQuantizationType.F64: torch.float64,
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class GgufReader:
    """Reads `tensors` (by Hugging Face name) of the file at `path`.

    `interleaved` gives for each tensor whose rows are stored in interleaved rotary order its number of heads; their
    rows come back in the order of halves that Hugging Face uses.
    """

    def __init__(self, path: Path, tensors: Mapping[str, TensorInfo], interleaved: Mapping[str, int]) -> None:
        self._path = path
        self._tensors = dict(tensors)
        self._interleaved = interleaved
        self._lock = threading.Lock()
        for info in self._tensors.values():
            if info.kind not in _PLAIN and not _can_dequantize(info.kind):
                raise UnsupportedCheckpoint(
                    f"{path}: the tensor {info.name!r} has type {info.kind.name}, which the installed gguf package "
                    "cannot dequantise. Use another quantisation of the model."
                )
        self._file = path.open("rb", buffering=0)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors in the file."""
        return sum(info.nbytes for info in self._tensors.values())

    def names(self) -> Sequence[str]:
        """Hugging Face names in file order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""
        return self._tensors[name].shape

    def nbytes(self, name: str) -> int:
        """The tensor's bytes in the file."""
        return self._tensors[name].nbytes

    def read(self, name: str) -> torch.Tensor:
        """The tensor: its own dtype if it is a float type, else float32; raises `DamagedCheckpoint` on a short file."""
        info = self._tensors[name]
        block, size = GGML_QUANT_SIZES[info.kind]
        plain = _PLAIN.get(info.kind)
        out = torch.empty(math.prod(info.shape), dtype=plain or torch.float32)
        if plain is not None:
            self._read_into(info, 0, out.view(torch.uint8).numpy().data)
        else:
            values = out.numpy()
            step = _SLICE_ELEMENTS // block * block
            buffer = np.empty(min(step, values.size) // block * size, np.uint8)
            for start in range(0, values.size, step):
                part = values[start : start + step]
                raw = buffer[: part.size // block * size]
                self._read_into(info, start // block * size, raw.data)
                part[:] = dequantize(raw.reshape(1, -1), info.kind).reshape(-1)
        tensor = out.view(info.shape)
        heads = self._interleaved.get(name)
        return tensor if heads is None else _to_halves(tensor, heads)

    def read_into(self, targets: Mapping[str, torch.Tensor], on_progress: Callable[[int], None]) -> None:
        """Dequantise tensor by tensor on the host, and copy each into its target."""
        for name, target in targets.items():
            target.copy_(self.read(name))
            on_progress(self.nbytes(name))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_into(self, info: TensorInfo, skip: int, view: memoryview) -> None:
        with self._lock:
            self._file.seek(info.offset + skip)
            done = 0
            while done < len(view):
                count = self._file.readinto(view[done : done + (64 << 20)])
                if not count:
                    raise DamagedCheckpoint(
                        f"{self._path} ends inside its tensor {info.name!r}, at byte {info.offset + skip + done}. "
                        "Incomplete download? Fetch it again."
                    )
                done += count


def _can_dequantize(kind: GGMLQuantizationType) -> bool:
    _, size = GGML_QUANT_SIZES[kind]
    try:
        dequantize(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _to_halves(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    pairs = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
