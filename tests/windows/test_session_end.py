"""Logging off ends the server in order: its window is told, its clients are, and its engine ends with it."""

from __future__ import annotations

import subprocess
from time import perf_counter

import openai
import pytest
from server.running_server import wait_until
from windows.wine_server import WINE, WineServer

pytestmark = [
    pytest.mark.skipif(not (WINE / "wine-run").is_file(), reason="needs `nox -s windows`, which sets up Wine"),
    pytest.mark.full,
]


def test_logging_off() -> None:
    with WineServer("--port", "0") as running:
        client = running.wait_ready().client()
        name = client.models.list().data[0].id
        events = client.completions.create(model=name, prompt="Once", max_tokens=2000, stream=True)
        next(events)
        began = perf_counter()
        log_off = [str(WINE / "wine-run"), "wineboot", "--end-session"]
        subprocess.run(log_off, stdin=subprocess.DEVNULL, check=True, timeout=60)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(events)
        assert running.process.wait(20) == 0
        # Windows ends what takes longer than five; the end itself takes one.
        assert perf_counter() - began < 5
        assert "the console or the session ends" in running.text()
        wait_until(lambda: not running.pythons(), 5, "the engine ended too")
