"""The engine that the engine process serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from wllm.factory import create_engine
from wllm_runtime.grammars import Grammars
from wllm_runtime.testing import save_tiny_llama


def test_nothing_is_left_to_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds up the whole process is done before the server says that it is ready."""
    loaded: list[Grammars] = []
    monkeypatch.setattr(Grammars, "load", lambda grammars: loaded.append(grammars))
    save_tiny_llama(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    create_engine({"model": str(tmp_path), "device": "cpu"}).close()
    assert len(loaded) == 1
