"""What an opened checkpoint offers: plain data and a reader of weights, the same for every file format.

Owns no file. `open_checkpoint` builds a `Checkpoint`; the model loader reads its weights and closes the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import torch

from wllm_runtime.checkpoint.model_config import ModelConfig

Format = Literal["safetensors", "gguf"]
LoadFormat = Literal["auto", "dummy"]


class WeightReader(Protocol):
    """Tensors by their Hugging Face names; called by one thread."""

    @property
    def num_bytes(self) -> int:
        """Bytes that all tensors take in the files, for a progress bar."""

    def names(self) -> Sequence[str]:
        """All tensor names, in file order."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as `read` returns it; raises `KeyError` for an unknown name, as all methods do."""

    def nbytes(self, name: str) -> int:
        """Bytes that the tensor takes in its file."""

    def read(self, name: str) -> torch.Tensor:
        """A CPU tensor that the caller owns: the file's dtype, or float32 where the file is quantised."""

    def read_into(self, targets: Mapping[str, torch.Tensor], on_progress: Callable[[int], None]) -> None:
        """Fill each target, of the shape of its tensor, in the target's dtype and on its device.

        Targets are contiguous and lie on one device. `on_progress` gets the bytes of the files that are done, piece by
        piece, maybe from other threads, one call at a time. Raises a `CheckpointError` where a file cannot be read.
        """

    def close(self) -> None:
        """Release the files; reading afterwards is an error."""


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened.

    `tokenizer_json` is the text of a tokenizer.json without truncation or padding; None if it was not wanted.
    `special_tokens` maps "bos_token", "eos_token", "unk_token", "pad_token" to texts. Any of `eos_token_ids` ends an
    answer. `default_sampling` holds the author's recommended settings by SamplingParams field name. `weights` is None
    for dummy loading. `rope_freq_factors` [head_dim / 2] divides the rotary frequencies (GGUF files of Llama 3 store
    their scaling so); None for no scaling beyond `config.rope_parameters`.
    """

    path: Path
    format: Format
    config: ModelConfig
    tokenizer_json: str | None
    chat_template: str | None
    special_tokens: Mapping[str, str]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    weights: WeightReader | None
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    rope_freq_factors: torch.Tensor | None = None
