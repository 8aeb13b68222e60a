"""Ollama's models: a manifest for each name, and the GGUF files that they point to, which are read in place."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wllm_runtime.stores.folders import files_below
from wllm_runtime.stores.stored_model import OnTrouble, StoredModel

_HOST, _NAMESPACE = "registry.ollama.ai", "library"
_KIND = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Layer(NamedTuple):
    kind: str
    digest: str
    num_bytes: int


def ollama_folders() -> list[Path]:
    """Where Ollama keeps models: OLLAMA_MODELS, else the home of this user and that of the user `ollama`.

    The latter runs Ollama where Linux's installer made it a service.
    """
    if given := os.environ.get("OLLAMA_MODELS", "").strip(" \"'"):
        return [Path(given).expanduser()]
    homes = [Path.home()]
    try:
        homes.append(Path("~ollama").expanduser())
    except RuntimeError:  # no such user
        pass
    return [home / ".ollama" / "models" for home in homes]


def ollama_models(on_trouble: OnTrouble) -> Iterator[StoredModel]:
    """The models of all manifests, by the names that `ollama list` shows."""
    for root in ollama_folders():
        for folder, files in files_below(root / "manifests", on_trouble):
            place = folder.relative_to(root / "manifests").parts
            if len(place) != 3:
                continue
            host, namespace, model = place
            prefix = "" if host == _HOST else f"{host}/"
            if prefix or namespace != _NAMESPACE:
                prefix += f"{namespace}/"
            for tag in files:
                yield _model(f"{prefix}{model}:{tag}", folder / tag, root / "blobs")


def _model(name: str, manifest: Path, blobs: Path) -> StoredModel:
    try:
        layers = _layers(manifest)
    except (OSError, ValueError, KeyError, TypeError):
        return StoredModel(name, manifest, 0, "incomplete", "ollama", note="its manifest cannot be read")
    weights = [layer for layer in layers if layer.kind == "model"]
    if len(weights) != 1:
        note = f"{len(weights)} files of weights" if weights else "no GGUF file: other weights, or a model of a cloud"
    elif any(layer.kind == "adapter" for layer in layers):
        note = "with an adapter, which wLLM does not read"
    else:
        return _file(name, weights[0], blobs)
    return StoredModel(name, manifest, sum(layer.num_bytes for layer in layers), "other", "ollama", note=note)


def _file(name: str, weights: _Layer, blobs: Path) -> StoredModel:
    blob = blobs / weights.digest.replace(":", "-")
    try:
        found = blob.stat().st_size
    except OSError:
        found = 0
    if found != weights.num_bytes:
        note = f"{found} of {weights.num_bytes} bytes"
        return StoredModel(name, blob, found, "incomplete", "ollama", note=note)
    return StoredModel(name, blob, found, "gguf", "ollama")


def _layers(manifest: Path) -> list[_Layer]:
    """The layers of a manifest; raises an exception of Python's own where it is none."""
    content = json.loads(manifest.read_text(encoding="utf-8"))
    layers = [
        _Layer(str(layer["mediaType"]).removeprefix(_KIND).partition(";")[0], str(layer["digest"]), int(layer["size"]))
        for layer in content["layers"] or []
    ]
    if damaged := [layer.digest for layer in layers if not _DIGEST.fullmatch(layer.digest)]:
        raise ValueError(f"no digest: {damaged[0]}")
    return layers
