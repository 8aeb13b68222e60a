"""Typed access to GGUF metadata, with errors that name the key and the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wllm_runtime.checkpoint.errors import DamagedCheckpoint
from wllm_runtime.checkpoint.gguf_file.header import Header, Value


class Fields:
    """Metadata of one file: each method gives None for an absent key, raises `DamagedCheckpoint` for a wrong type."""

    def __init__(self, header: Header) -> None:
        self.path: Path = header.path
        self._metadata: Mapping[str, Value] = header.metadata

    def text(self, key: str) -> str | None:
        """A string."""
        value = self._metadata.get(key)
        if value is not None and not isinstance(value, str):
            raise self.odd(key, "a string")
        return value

    def flag(self, key: str) -> bool | None:
        """A boolean."""
        value = self._metadata.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.odd(key, "true or false")
        return value

    def integer(self, key: str) -> int | None:
        """An integer that is not negative; an array counts as one if all its entries are equal (one for each layer)."""
        value = self._metadata.get(key)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise self.odd(key, "an integer that is not negative")
        return value

    def number(self, key: str) -> float | None:
        """A finite number."""
        value = self._metadata.get(key)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value)
        ):
            raise self.odd(key, "a finite number")
        return value

    def texts(self, key: str) -> list[str] | None:
        """An array of strings."""
        value = self._metadata.get(key)
        if value is not None and not isinstance(value, list):
            raise self.odd(key, "an array of strings")
        return value

    def numbers(self, key: str, length: int) -> np.ndarray | None:
        """A numeric array of `length` entries."""
        value = self._metadata.get(key)
        if value is not None and (not isinstance(value, np.ndarray) or len(value) != length):
            raise self.odd(key, f"an array of {length} numbers")
        return value

    def token_id(self, key: str, vocab_size: int) -> int | None:
        """A token id below `vocab_size`; None also for the 2^32 - 1 by which some converters say "none"."""
        value = self.integer(key)
        if value is None or value == 0xFFFFFFFF:
            return None
        if value >= vocab_size:
            raise self.odd(key, f"a token id below {vocab_size}")
        return value

    def required_integer(self, key: str) -> int:
        """An integer above 0 that must be there."""
        value = self.integer(key)
        if not value:
            raise self.missing(key) if value is None else self.odd(key, "above 0")
        return value

    def missing(self, key: str) -> DamagedCheckpoint:
        """The error for a key that must be there."""
        return DamagedCheckpoint(f"{self.path} lacks the metadata key {key!r}. Use a file made by a current converter.")

    def odd(self, key: str, wanted: str) -> DamagedCheckpoint:
        """The error for a value that cannot be used."""
        shown = repr(self._metadata.get(key))
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return DamagedCheckpoint(
            f"{self.path}: the metadata key {key!r} must be {wanted}, not {shown}. Use a file made by a current "
            "converter."
        )
