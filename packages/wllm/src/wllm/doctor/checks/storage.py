"""The folders of models and of temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from wllm.console import size_text
from wllm.doctor.facts import Facts
from wllm.doctor.finding import Finding, Verdict

_GIB = 2**30
_CACHE_LEAST, _CACHE_ENOUGH = _GIB // 4, 20 * _GIB
_TEMP_LEAST, _TEMP_ENOUGH = _GIB // 10, _GIB


def model_cache() -> Path:
    """The folder in which the hub's client keeps models."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    hub = Path(os.environ.get("HF_HOME") or home / "huggingface") / "hub"
    own = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(own or hub).expanduser()


def cache(_: Facts) -> Iterator[Finding]:
    """It can be read and written, and has room for a model."""
    folder = model_cache()
    move = "free disk space, or set HF_HOME to a folder on another disk"
    if folder.exists():
        try:
            models = sum(1 for entry in folder.iterdir() if entry.name.startswith("models--"))
        except OSError as error:
            seen = f"{folder} cannot be read: {error.strerror}"
            fix = "give yourself the right to read it, or set HF_HOME to another folder"
            yield Finding("model cache", Verdict.PROBLEM, seen, "models of the hub are kept there", fix)
            return
        seen = f"{folder}, {models} model(s)"
        if (error_text := _unwritable(folder)) is not None:
            reason = f"models that are not there yet cannot be downloaded ({error_text})"
            yield Finding("model cache", Verdict.WARNING, seen, reason, "set HF_HOME to a folder that you can write to")
            return
    else:
        seen = f"{folder}, not made yet"
    reason = "a model of 8 billion parameters in 16 bits takes 16 GB"
    yield _room("model cache", seen, folder, (_CACHE_LEAST, _CACHE_ENOUGH), reason, move)


def temporary_files(_: Facts) -> Iterator[Finding]:
    """Python finds a folder for them, and it has room."""
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        fix = "free disk space, or set TMP (Windows) or TMPDIR to a folder that you can write to"
        yield Finding("temporary files", Verdict.PROBLEM, str(error), "pip and torch cannot do without", fix)
        return
    fix = "free disk space, or set TMP (Windows) or TMPDIR to a folder on another disk"
    reason = "pip and torch put large files there"
    yield _room("temporary files", str(folder), folder, (_TEMP_LEAST, _TEMP_ENOUGH), reason, fix)


def _room(check: str, seen: str, folder: Path, limits: tuple[int, int], reason: str, fix: str) -> Finding:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    least, enough = limits
    seen = f"{seen}, {size_text(free)} free"
    if free >= enough:
        return Finding(check, Verdict.OK, seen)
    return Finding(check, Verdict.PROBLEM if free < least else Verdict.WARNING, seen, reason, fix)


def _unwritable(folder: Path) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)
