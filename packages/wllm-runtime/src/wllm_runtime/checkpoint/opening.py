"""From the name of a model to an opened checkpoint."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from wllm_runtime.checkpoint.directory import open_directory
from wllm_runtime.checkpoint.errors import DamagedCheckpoint, ModelNotFound, UnsupportedCheckpoint
from wllm_runtime.checkpoint.interface import Checkpoint, LoadFormat
from wllm_runtime.stores import find, near

logger = logging.getLogger(__name__)

# From this length on, the end mark counted, Windows finds a path only where its long paths are on.
_WINDOWS_PATH = 260
_HUB_ID = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")


def open_checkpoint(
    model: str | Path,
    *,
    revision: str | None = None,
    load_format: LoadFormat = "auto",
    skip_tokenizer: bool = False,
) -> Checkpoint:
    """Opens the directory or .gguf file that `locate` finds; raises a `CheckpointError`.

    `model` comes from the person who starts the engine, never from a request. "dummy" opens no weight files.
    """
    if load_format not in get_args(LoadFormat):
        raise UnsupportedCheckpoint(
            f"load_format {load_format!r} is unknown. Use one of {', '.join(get_args(LoadFormat))}."
        )
    path = locate(model, revision=revision, load_format=load_format)
    with _readable(path):
        if path.is_dir():
            return open_directory(path, load_format=load_format, skip_tokenizer=skip_tokenizer)
        return _open_file(path, load_format, skip_tokenizer)


def locate(model: str | Path, *, revision: str | None = None, load_format: LoadFormat = "auto") -> Path:
    """The directory or file of `model`; raises a `CheckpointError`.

    What is no path is a hub id, which is downloaded, or the name of a model that Ollama or LM Studio has here.
    """
    path = Path(model).expanduser()
    with _readable(path):
        if not _exists(path):
            path = _download(str(model), path, revision, load_format)
        return _only_gguf_in(path) or path if path.is_dir() else path


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # no permission, a broken disk, a share that is gone
        raise ModelNotFound(f"{path} cannot be read: {error}. Check the path and its permissions.") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have: too long, or with a NUL
        return False


def _download(model: str, path: Path, revision: str | None, load_format: LoadFormat) -> Path:
    if not _HUB_ID.fullmatch(model) or model.lower().endswith(".gguf"):
        return _stored(model, path)
    from wllm_runtime.checkpoint.hub import download  # local models must start without the hub's libraries

    return download(model, revision=revision, weights=load_format != "dummy")


def _stored(model: str, path: Path) -> Path:
    found = find(model, logger.info)
    if found is None:
        tip = ", ".join(near(model, logger.info))
        raise ModelNotFound(
            f"There is no file or directory {path} (looked in {Path.cwd()}), no model {model!r} in the hub's cache, "
            f"Ollama's or LM Studio's folders, and it is no hub id of the form 'organisation/name'. "
            + (f"Near it on this disk: {tip}." if tip else "Check the spelling, or look for it on the hub.")
            + " `wllm models list` shows what is here."
            + _length_hint(path)
        )
    if not found.is_servable:
        raise UnsupportedCheckpoint(
            f"{found.name} cannot be served from {found.path}: {found.note or found.format}. "
            "Fetch it again, or take a model that has one GGUF file or safetensors."
        )
    if found.source == "ollama":
        logger.warning(
            "%s is Ollama's, read in place. The template, system message and parameters that Ollama keeps beside the "
            "file are not used: those of the file itself are.",
            found.name,
        )
    return found.path


def _length_hint(path: Path) -> str:
    length = len(str(path.absolute()))
    if sys.platform != "win32" or length < _WINDOWS_PATH:
        return ""
    return f" The path has {length} characters: Windows finds it only where long paths are on, as `wllm doctor` tells."


def _only_gguf_in(directory: Path) -> Path | None:
    if (directory / "config.json").exists():
        return None
    files = sorted(path for path in directory.iterdir() if path.suffix.lower() == ".gguf")
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise UnsupportedCheckpoint(f"{directory} holds {len(files)} GGUF files ({names}). Give the path of one.")
    return files[0] if files else None


def _open_file(path: Path, load_format: LoadFormat, skip_tokenizer: bool) -> Checkpoint:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"GGUF":
        # What it imports takes longer than opening a directory does.
        from wllm_runtime.checkpoint.gguf_file.opening import open_gguf

        return open_gguf(path, load_format=load_format, skip_tokenizer=skip_tokenizer)
    if path.suffix.lower() == ".gguf":
        raise DamagedCheckpoint(
            f"{path} ({path.stat().st_size} bytes) is no GGUF file: it begins with {magic!r}, not b'GGUF'. "
            "Incomplete download? Fetch it again."
        )
    raise UnsupportedCheckpoint(
        f"{path} is a single file that is not GGUF. For safetensors give the directory that holds it and config.json."
    )
