"""`wllm models`: what it prints of made-up stores, what it deletes, and names that `wllm serve` does not find."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from wllm.cli import main
from wllm.models.listing import table
from wllm_runtime.stores import StoredModel
from wllm_runtime.stores.download_record import recorded

COMMIT = "0123abcd" * 5
PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a model of each owner; org/ours was downloaded by wLLM."""
    home = tmp_path / "Дом Željko"
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "ollama"))
    write(home / ".lmstudio" / "models" / "pub" / "repo" / "small.gguf", bytes(3 * 2**20))
    digest = hashlib.sha256(b"GGUF").hexdigest()
    write(home / "ollama" / "blobs" / f"sha256-{digest}", b"GGUF")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": 4}
    manifest = home / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "llama3.2" / "1b"
    write(manifest, json.dumps({"layers": [layer]}).encode())
    with recorded(home / "hub" / "models--org--ours"):
        fill_repository(home, "ours")
    fill_repository(home, "others")
    return home


def fill_repository(home: Path, name: str) -> None:
    repository = home / "hub" / f"models--org--{name}"
    write(repository / "snapshots" / COMMIT / "model.safetensors", bytes(2**20))
    write(repository / "refs" / "main", COMMIT.encode())


def test_the_table(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home / "own" / "mine.gguf", b"GGUF")
    assert main(["models", "list", "--folder", str(home / "own")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME                  SIZE  FORMAT       FROM",
        "llama3.2:1b          0 MiB  gguf         Ollama",
        "mine.gguf            0 MiB  gguf         your folder",
        "org/others           1 MiB  safetensors  hub cache",
        "org/ours             1 MiB  safetensors  hub, by wLLM",
        "pub/repo/small.gguf  3 MiB  gguf         LM Studio",
    ]


def test_the_page_shows_the_table() -> None:
    mib = 2**20
    models = [
        StoredModel("llama3.2:latest", Path(), 1925 * mib, "gguf", "ollama"),
        StoredModel("pub/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", Path(), 2382 * mib, "gguf", "lm-studio"),
        StoredModel("Qwen/Qwen2.5-0.5B-Instruct", Path(), 953 * mib, "safetensors", "hub", own=True),
        StoredModel("Qwen/Qwen3-0.6B", Path(), 11 * mib, "incomplete", "hub", note="its weights have not arrived"),
    ]
    text = table(models)
    assert f"```\n{text}\n```" in PAGE.read_text(encoding="utf-8"), text


def test_the_document_for_programs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list", "--json"]) == 0
    output = capsys.readouterr().out
    rows = json.loads(output)["models"]
    assert output.isascii() and all(Path(row["path"]).exists() for row in rows)
    assert [(row["name"], row["source"], row["downloaded_by_wllm"]) for row in rows] == [
        ("llama3.2:1b", "ollama", False),
        ("org/others", "hub", False),
        ("org/ours", "hub", True),
        ("pub/repo/small.gguf", "lm-studio", False),
    ]
    assert rows[-1] | {"path": ""} == {
        "name": "pub/repo/small.gguf",
        "path": "",
        "size": 3 * 2**20,
        "format": "gguf",
        "source": "lm-studio",
        "downloaded_by_wllm": False,
        "note": "",
    }


def test_an_empty_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    assert main(["models", "list"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and str(tmp_path / "ollama") in printed.err and "wllm models pull" in printed.err
    assert main(["models", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"models": []}


def test_path(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "path", "ORG/ours"]) == 0
    assert capsys.readouterr().out == f"{home / 'hub' / 'models--org--ours' / 'snapshots' / COMMIT}\n"


def test_only_ours_is_deleted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "rm", "org/ours"]) == 0
    assert capsys.readouterr().out == "deleted org/ours, 1 MiB\n"
    assert not (home / "hub" / "models--org--ours").exists()
    write(home / "own" / "mine.gguf", b"GGUF")
    before = sorted(home.rglob("*"))
    owners = {
        "org/others": "other programs",
        "llama3.2:1b": "ollama rm llama3.2:1b",
        "pub/repo/small.gguf": "LM Studio",
    }
    for name, owner in {**owners, "mine.gguf": "a folder of yours"}.items():
        assert main(["models", "rm", name, "--folder", str(home / "own")]) == 1
        assert owner in capsys.readouterr().err
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("command", ["path", "rm"])
def test_unknown_names_name_what_is_near(command: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", command, "llama3.2"]) == 1
    assert "called 'llama3.2'. Near it: llama3.2:1b." in capsys.readouterr().err


@pytest.mark.parametrize("command", [("list",), ("path", "x"), ("rm", "x")])
def test_a_folder_that_is_none(command: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", *command, "--folder", str(home / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_pull_says_what_to_serve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, str | None]] = []

    def locate(model: str, *, revision: str | None) -> Path:
        asked.append((model, revision))
        return Path("cache")

    monkeypatch.setattr("wllm_runtime.checkpoint.locate", locate)
    assert main(["models", "pull", "org/tiny", "--revision", "v2"]) == 0
    assert asked == [("org/tiny", "v2")]
    assert capsys.readouterr().out == "org/tiny is in cache\nserve it: wllm serve org/tiny --revision v2\n"


def test_pull_of_what_is_no_hub_id(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "llama3.2"]) == 1
    assert "Near it on this disk: llama3.2:1b." in capsys.readouterr().err


def test_a_newcomers_name_is_told_what_is_near(home: Path) -> None:
    environment = {**os.environ, "OLLAMA_MODELS": str(home / "ollama"), "HF_HUB_CACHE": str(home / "hub")}
    command = [sys.executable, "-m", "wllm", "serve", "llama3.2", "--port", "0"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "Near it on this disk: llama3.2:1b." in done.stderr


def test_listing_loads_no_torch(home: Path) -> None:
    code = (
        "import sys; from wllm.cli import main; main(['models', 'list']);"
        "assert not {'torch', 'transformers'} & set(sys.modules), sorted(sys.modules)"
    )
    environment = {**os.environ, "OLLAMA_MODELS": str(home / "ollama"), "HF_HUB_CACHE": str(home / "hub")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0 and "org/ours" in done.stdout, done.stderr
