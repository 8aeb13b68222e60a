"""Names like one that is not there, and models by name as `wllm serve` takes them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from wllm_runtime.checkpoint import ModelNotFound, UnsupportedCheckpoint, locate
from wllm_runtime.stores import near

Writer = Callable[..., Path]
LIBRARY = "registry.ollama.ai/library"


@pytest.fixture(autouse=True)
def some_models(add_ollama: Writer, add_cached: Writer) -> None:
    add_ollama(f"{LIBRARY}/llama3.2/1b", ("model", b"weights"))
    add_cached("meta-llama/Llama-3.2-1B-Instruct", "config.json", "model.safetensors")
    add_cached("org/others", "config.json", "model.safetensors")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama3.2", ["llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct"]),
        ("llama3.2:70b", ["llama3.2:1b", "meta-llama/Llama-3.2-1B-Instruct"]),
        ("lama3.1:1b", ["llama3.2:1b"]),
        ("qwen", []),
        ("", []),
        (":", []),
    ],
)
def test_near_names(name: str, found: list[str]) -> None:
    assert near(name, print) == found


def test_at_most_three_are_near(add_cached: Writer) -> None:
    for number in range(9):
        add_cached(f"org/qwen{number}", "model.safetensors")
    assert len(near("qwen", print)) == 3


def test_a_name_of_ollama_is_its_blob(add_ollama: Writer, caplog: pytest.LogCaptureFixture) -> None:
    blob = add_ollama(f"{LIBRARY}/smollm2/latest", ("model", b"GGUF"), ("system", b"You are a pirate."))
    assert locate("smollm2") == blob
    assert "system message and parameters that Ollama keeps beside the file are not used" in caplog.text


def test_a_file_of_the_cache_is_found_by_id_and_name(add_cached: Writer, caplog: pytest.LogCaptureFixture) -> None:
    snapshot = add_cached("org/files-GGUF", "a.gguf", "b.gguf")
    with caplog.at_level(logging.INFO):
        assert locate("org/files-GGUF/b.gguf") == snapshot / "b.gguf"
    assert caplog.text == ""


def test_what_is_not_there_names_what_is_near() -> None:
    with pytest.raises(ModelNotFound, match=r"'llama3\.2'.*no hub id.*Near it on this disk: llama3\.2:1b, meta-llama/"):
        locate("llama3.2")
    with pytest.raises(ModelNotFound, match="Check the spelling"):
        locate("qwen")


def test_what_cannot_be_served_says_why(add_ollama: Writer) -> None:
    blob = add_ollama(f"{LIBRARY}/cut/latest", ("model", b"weights"))
    blob.write_bytes(b"wei")
    with pytest.raises(UnsupportedCheckpoint, match="3 of 7 bytes"):
        locate("cut")


def test_a_path_comes_before_a_name(add_ollama: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_ollama(f"{LIBRARY}/tiny/latest", ("model", b"GGUF"))
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    assert locate("tiny") == Path("tiny")
