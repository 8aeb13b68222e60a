"""How the server on Windows ends: Ctrl+C, a killed engine, a killed server; nothing of it stays."""

from __future__ import annotations

import time
from typing import Literal

import openai
import pytest
from server.running_server import wait_until
from windows.wine_server import START_S, WineServer, begun, complete


@pytest.mark.parametrize("when", ["loading", "busy", pytest.param("idle", marks=pytest.mark.full)])
def test_ctrl_c_ends_both_processes(when: Literal["loading", "busy", "idle"]) -> None:
    with WineServer("--port", "0") as running:
        if when == "loading":
            wait_until(lambda: running.largest_bytes() > 200e6, START_S, "the engine process imports torch")
        else:
            client = running.wait_ready().client()
        if when == "busy":
            events = begun(client)
        code, seconds = running.interrupt()
        print(f"ended {seconds:.1f} s after Ctrl+C while {when}")
        assert code == 0 and seconds < 15 and "Traceback" not in running.text(), running.text()
        wait_until(lambda: not running.pythons(), 5, "the engine ended too")
        if when == "busy":
            with pytest.raises(openai.APIError, match="shutting down"):
                list(events)


def test_a_killed_engine_comes_back_and_a_killed_server_takes_it_along() -> None:
    with WineServer("--port", "0") as running:
        client = running.wait_ready().client()
        events = begun(client)
        running.kill(engine=True)
        with pytest.raises(openai.APIError, match="engine process died"):
            list(events)
        wait_until(lambda: not running.is_ready(), 20, "health tells that the engine died")
        running.wait_ready()
        assert complete(client, "The sky is")
        running.kill()
        wait_until(lambda: not running.pythons(), 20, "the engine of a killed server ends")


@pytest.mark.full
@pytest.mark.parametrize("engine", [False, True])
@pytest.mark.parametrize("after_s", range(1, 21, 2))
def test_whichever_is_killed_at_any_moment_nothing_stays(after_s: float, engine: bool) -> None:
    with WineServer("--port", "0") as running:
        time.sleep(after_s)
        running.kill(engine=engine)
        if engine:
            wait_until(lambda: not running.is_ready(), 20, "health tells that the engine died")
            running.wait_ready()
            assert complete(running.client(), "The sky is")
            running.kill()
        wait_until(lambda: not running.pythons(), 20, "every process ended")
