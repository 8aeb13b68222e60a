"""Model files below a folder: directories of safetensors, and GGUF files, each named by its place in the folder."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from wllm_runtime.stores.stored_model import OnTrouble, Source, StoredModel

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(?:gguf|safetensors)", re.IGNORECASE)


def models_below(root: Path, source: Source, on_trouble: OnTrouble) -> Iterator[StoredModel]:
    """The models at or below `root`. Links to folders are not followed: they may lead in a circle."""
    for folder, files in files_below(root, on_trouble):
        place = PurePosixPath(folder.relative_to(root).as_posix())
        weights = [name for name in files if name.lower().endswith(".safetensors")]
        if weights and "config.json" in files:
            name = root.name if folder == root else str(place)
            yield safetensors_model(name, folder, sum(files.values()), weights, source)
        ggufs = {str(place / name): (folder / name, size) for name, size in files.items()}
        yield from gguf_models(ggufs, source)


def files_below(root: Path, on_trouble: OnTrouble) -> Iterator[tuple[Path, dict[str, int]]]:
    """Each folder at or below `root` with its files' names and bytes, in order of names; none without a root."""
    if not root.exists():
        return
    for folder, folders, names in os.walk(root, onerror=lambda error: on_trouble(f"{error} (not looked into)")):
        folders.sort()
        sizes = {}
        for name in sorted(names):
            try:
                sizes[name] = Path(folder, name).stat().st_size
            except OSError as error:  # a link to nothing, or a file that has just gone
                on_trouble(f"{error} (left out)")
        yield Path(folder), sizes


def safetensors_model(
    name: str, path: Path, num_bytes: int, weights: Sequence[str], source: Source, *, own: bool = False
) -> StoredModel:
    """The model of a directory whose files of weights have these names, which tell how many there should be."""
    parts = {part[1]: int(part[3]) for file in weights if (part := _PART.fullmatch(file))}
    missing = sum(parts.values()) - sum(1 for file in weights if _PART.fullmatch(file))
    if missing > 0:
        return StoredModel(
            name, path, num_bytes, "incomplete", source, own, f"{missing} of its files of weights missing"
        )
    return StoredModel(name, path, num_bytes, "safetensors", source, own)


def gguf_models(files: Mapping[str, tuple[Path, int]], source: Source) -> Iterator[StoredModel]:
    """The models among `files`, which maps names to paths and bytes: the parts of a split one are one model."""
    parts: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name, (path, num_bytes) in sorted(files.items()):
        # mmproj files are what llama.cpp reads images with, beside a model.
        if path.suffix.lower() != ".gguf" or path.name.lower().startswith("mmproj"):
            continue
        if part := _PART.fullmatch(name):
            parts[part[1], int(part[3])].append(name)
        else:
            yield StoredModel(name, path, num_bytes, "gguf", source)
    for (_, count), names in parts.items():
        yield StoredModel(
            names[0],
            files[names[0]][0],
            sum(files[name][1] for name in names),
            "gguf" if len(names) == count else "incomplete",
            source,
            note=f"{len(names)} of {count} parts" if len(names) != count else f"{count} parts",
        )
