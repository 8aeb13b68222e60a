"""`StoredModel`: one model on this disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["safetensors", "gguf", "incomplete", "other"]
Source = Literal["hub", "ollama", "lm-studio", "folder"]
# Told what of a store could not be read; the rest is still found.
OnTrouble = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model by the name that its owner gives it; `path` is what can be served, or the place where it should be.

    `own` says that wLLM downloaded all of it. `note` tells what is unusual, and may be empty.
    """

    name: str
    path: Path
    num_bytes: int
    format: Format
    source: Source
    own: bool = False
    note: str = ""

    def is_called(self, name: str) -> bool:
        """Whether `name` is this model's, in any case of letters; Ollama's tag "latest" may be left out."""
        asked, ours = name.replace("\\", "/").casefold(), self.name.casefold()
        return asked == ours or (self.source == "ollama" and f"{asked}:latest" == ours)

    @property
    def is_servable(self) -> bool:
        """Whether all of it is there, in a format that wLLM reads."""
        return self.format in ("safetensors", "gguf")
