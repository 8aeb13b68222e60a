"""What Ollama's clients are told of the real small model, and the example of the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ollama
from server.running_server import RunningServer

PAGE = Path(__file__).parents[2] / "docs" / "ollama.md"


def test_the_model_is_shown(server: RunningServer, llama: ollama.Client) -> None:
    (listed,) = llama.list().models
    assert listed.model == f"{server.model()}:latest"
    shown = llama.show(listed.model)
    assert shown.modelinfo is not None
    family = shown.modelinfo["general.architecture"]
    assert family == "llama"
    assert listed.size is not None and listed.details is not None
    assert shown.modelinfo["general.parameter_count"] == 134_515_008
    assert listed.size in (2 * 134_515_008, 4 * 134_515_008)
    assert listed.details.parameter_size == "135M"
    (loaded,) = llama.ps().models
    assert loaded.context_length == shown.modelinfo[f"{family}.context_length"]


def test_example_of_the_page(server: RunningServer) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", block.replace("http://127.0.0.1:8000", server.url)],
        capture_output=True,
        encoding="utf-8",
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
