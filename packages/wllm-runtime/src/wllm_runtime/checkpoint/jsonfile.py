"""JSON files of a model directory, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from wllm_runtime.checkpoint.errors import DamagedCheckpoint


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; raises `DamagedCheckpoint` naming a file that is no text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedCheckpoint(
            f"{path} is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x}). "
            "Incomplete download? Fetch the file again."
        ) from error


def parse_object(text: str, path: Path) -> dict[str, object]:
    """The JSON object that `text`, read from `path`, holds; raises `DamagedCheckpoint` naming the file."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DamagedCheckpoint(
            f"{path} is not valid JSON: {error} (the file has {len(text)} characters). "
            "Incomplete download? Fetch the file again."
        ) from error
    if not isinstance(value, dict):
        raise DamagedCheckpoint(f"{path} must hold a JSON object, not {type(value).__name__}. Is it another file?")
    return cast("dict[str, object]", value)


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in the file, `{}` if the file does not exist."""
    return parse_object(read_text(path), path) if path.is_file() else {}
