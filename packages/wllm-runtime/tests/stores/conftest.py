"""Made-up stores in a home of their own: a hub cache, Ollama's folders and LM Studio's; files of a few bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from wllm_runtime.stores import StoredModel, stored_models

OllamaWriter = Callable[..., Path]
CacheWriter = Callable[..., Path]
LAYER = "application/vnd.ollama.image."


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, whose name has spaces and Cyrillic letters; nothing outside of it is looked into."""
    home = tmp_path / "Дом Željko"
    home.mkdir()
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    return home


@pytest.fixture
def add_ollama(home: Path) -> OllamaWriter:
    """Writes a manifest, by its place below `manifests`, and a blob for each (kind, data); returns the first blob."""

    def add(place: str, *layers: tuple[str, bytes], root: Path = home / ".ollama" / "models") -> Path:
        entries, blobs = [], []
        for kind, data in layers:
            digest = hashlib.sha256(data).hexdigest()
            blobs.append(write(root / "blobs" / f"sha256-{digest}", data))
            entries.append({"mediaType": f"{LAYER}{kind}", "digest": f"sha256:{digest}", "size": len(data)})
        write(root / "manifests" / place, json.dumps({"schemaVersion": 2, "layers": entries}).encode())
        return blobs[0] if blobs else root

    return add


@pytest.fixture
def add_cached(home: Path) -> CacheWriter:
    """Writes a repository of the hub's cache with one revision, without links as on Windows; returns its snapshot."""

    def add(repo_id: str, *names: str, commit: str = "0123abcd" * 5, kind: str = "model", ref: str = "main") -> Path:
        repository = home / "hub" / f"{kind}s--{repo_id.replace('/', '--')}"
        for name in names:
            write(repository / "snapshots" / commit / name, b"12345")
        write(repository / "refs" / ref, commit.encode())
        return repository / "snapshots" / commit

    return add


def write(path: Path, data: bytes) -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def listed(*folders: Path) -> dict[str, StoredModel]:
    """All models by their names; no trouble may be told, no name come twice."""
    troubles: list[str] = []
    models = list(stored_models(troubles.append, folders))
    assert troubles == []
    assert len({model.name for model in models}) == len(models)
    return {model.name: model for model in models}


@pytest.fixture
def list_models() -> Callable[..., dict[str, StoredModel]]:
    """`listed`."""
    return listed
