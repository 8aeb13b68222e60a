"""`wllm chat` over pipes: a conversation with the small real model."""

from __future__ import annotations

import subprocess
import sys


def chat(*lines: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wllm", "chat", "--temperature", "0", *arguments],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )


def test_a_conversation_with_a_second_turn() -> None:
    done = chat("What is the capital of France?", "", "/reset", "Name the capital of Italy.", "/exit", "never asked")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout and "Rome" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_message_that_does_not_fit_is_refused_and_forgotten() -> None:
    done = chat("word " * 200, "Hi", arguments=("--max-model-len", "128", "--max-tokens", "4"))
    assert done.returncode == 0, done.stderr
    assert "maximum context length is 128 tokens" in done.stderr
    assert "/reset" in done.stderr
