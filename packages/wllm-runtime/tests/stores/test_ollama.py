"""Ollama's manifests and blobs: names, files in place, and what is no single GGUF file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from wllm_runtime.stores import StoredModel, find
from wllm_runtime.stores.ollama import ollama_folders

Lister = Callable[..., dict[str, StoredModel]]
Writer = Callable[..., Path]
LIBRARY = "registry.ollama.ai/library"


def test_names_are_those_that_ollama_shows(add_ollama: Writer, list_models: Lister) -> None:
    places = {
        f"{LIBRARY}/llama3.2/latest": "llama3.2:latest",
        f"{LIBRARY}/llama3.2/1b": "llama3.2:1b",
        "registry.ollama.ai/someone/tiny/latest": "someone/tiny:latest",
        "hf.co/org/some-GGUF/Q4_K_M": "hf.co/org/some-GGUF:Q4_K_M",
    }
    blobs = {name: add_ollama(place, ("model", name.encode())) for place, name in places.items()}
    models = list_models()
    assert {name: model.path for name, model in models.items()} == blobs
    for name, model in models.items():
        assert (model.format, model.source, model.num_bytes, model.own) == ("gguf", "ollama", len(name), False)


@pytest.mark.parametrize("name", ["llama3.2", "Llama3.2", "llama3.2:latest"])
def test_the_tag_latest_may_be_left_out(name: str, add_ollama: Writer) -> None:
    blob = add_ollama(f"{LIBRARY}/llama3.2/latest", ("model", b"weights"), ("template", b"words"))
    add_ollama(f"{LIBRARY}/llama3.2/1b", ("model", b"others"))
    found = find(name, print)
    assert found is not None and found.path == blob


@pytest.mark.parametrize("name", ["llama3.2:8b", "llama3", "library/../llama3.2", ""])
def test_other_names_find_nothing(name: str, add_ollama: Writer) -> None:
    add_ollama(f"{LIBRARY}/llama3.2/latest", ("model", b"weights"))
    assert find(name, print) is None


@pytest.mark.parametrize(
    ("layers", "note"),
    [
        ((("tensor", b"a"), ("tensor", b"b")), "no GGUF file"),
        ((), "no GGUF file"),
        ((("model", b"a"), ("model", b"b")), "2 files of weights"),
        ((("model", b"a"), ("adapter", b"b")), "adapter"),
    ],
)
def test_what_is_no_single_gguf_file(
    layers: tuple[tuple[str, bytes], ...], note: str, add_ollama: Writer, list_models: Lister
) -> None:
    add_ollama(f"{LIBRARY}/odd/latest", *layers)
    (model,) = list_models().values()
    assert model.format == "other" and note in model.note and not model.is_servable


def test_a_blob_that_is_cut_short_or_gone(add_ollama: Writer, list_models: Lister) -> None:
    blob = add_ollama(f"{LIBRARY}/cut/latest", ("model", b"weights"))
    blob.write_bytes(b"wei")
    (model,) = list_models().values()
    assert (model.format, model.note) == ("incomplete", "3 of 7 bytes")
    blob.unlink()
    (model,) = list_models().values()
    assert (model.format, model.note) == ("incomplete", "0 of 7 bytes")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"layers": [1]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../up", "size": 1}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 5, "size": "1"}]}',
    ],
)
def test_damaged_manifests_are_told(text: bytes, add_ollama: Writer, home: Path, list_models: Lister) -> None:
    add_ollama(f"{LIBRARY}/damaged/latest")
    (home / ".ollama" / "models" / "manifests" / LIBRARY / "damaged" / "latest").write_bytes(text)
    add_ollama(f"{LIBRARY}/sound/latest", ("model", b"weights"))
    models = list_models()
    assert models["damaged:latest"].format == "incomplete" and models["sound:latest"].format == "gguf"
    assert "manifest" in models["damaged:latest"].note


def test_the_folder_of_the_environment(
    add_ollama: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, list_models: Lister
) -> None:
    add_ollama(f"{LIBRARY}/at-home/latest", ("model", b"weights"))
    blob = add_ollama(f"{LIBRARY}/elsewhere/latest", ("model", b"weights"), root=tmp_path / "other disk")
    monkeypatch.setenv("OLLAMA_MODELS", f' "{tmp_path / "other disk"}"')
    assert {name: model.path for name, model in list_models().items()} == {"elsewhere:latest": blob}


@pytest.mark.skipif(os.name != "posix", reason="a service with a user of its own is Linux's")
def test_the_home_of_linuxs_service_is_looked_into(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "expanduser", lambda self: home / "service" if str(self) == "~ollama" else self)
    assert ollama_folders() == [home / ".ollama" / "models", home / "service" / ".ollama" / "models"]
