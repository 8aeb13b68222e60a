"""`wllm chat` over pipes: a conversation with the small real model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from wllm.default_model import default_model
from wllm_runtime.testing_poolers import save_pooler, save_tokenizer


def chat(
    *lines: str, arguments: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wllm", "chat", "--temperature", "0", *arguments],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **(environment or {})},
        timeout=300,
    )


def test_standard_output_has_the_answers_only() -> None:
    done = chat("/bye", "/?", "Hi", arguments=("--max-tokens", "4"))
    assert done.returncode == 0, done.stderr
    assert "/bye is none of the commands" in done.stderr and "/? is none of the commands" in done.stderr
    assert "/reset" in done.stderr and "max_model_len" in done.stderr
    assert "/reset" not in done.stdout and len(done.stdout.strip().splitlines()) == 1


def test_a_second_turn_with_a_user_whose_folders_have_other_letters(tmp_path: Path) -> None:
    """R43: in every path that begins with the user's folder."""
    home = tmp_path / "Željko Größe 日本 🫠"
    folders = {
        "HOME": home, "USERPROFILE": home, "APPDATA": home, "LOCALAPPDATA": home, "HF_HOME": home / "hub",
        "TEMP": home / "Temp", "TMP": home / "Temp", "TMPDIR": home / "Temp", "WLLM_KERNELS_CACHE": home / "kernels",
    }  # fmt: skip
    model = home / "модели" / "小さな Ä.gguf"
    for folder in (*folders.values(), model.parent):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(default_model().model, model)
    environment = {name: str(folder) for name, folder in folders.items()}
    lines = ("What is the capital of France?", "", "/reset", "Name the capital of Italy.", "/exit", "never asked")
    done = chat(*lines, arguments=(str(model),), environment=environment)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "Paris" in done.stdout and "Rome" in done.stdout and model.name in done.stderr


def test_a_message_that_does_not_fit_is_refused_and_forgotten() -> None:
    done = chat("word " * 200, "Hi", arguments=("--max-model-len", "128", "--max-tokens", "4"))
    assert done.returncode == 0, done.stderr
    assert "maximum context length is 128 tokens" in done.stderr
    assert "/reset" in done.stderr


def test_nobody_chats_with_an_embedding_model(tmp_path: Path) -> None:
    save_pooler(tmp_path, "bert")
    save_tokenizer(tmp_path)
    done = chat("Hi", arguments=(str(tmp_path),))
    assert done.returncode == 1
    assert "writes no text" in done.stderr and "Traceback" not in done.stderr
