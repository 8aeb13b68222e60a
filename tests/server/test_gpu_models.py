"""Two models on one GPU, loaded by name: all of the memory comes back when one goes, and a lost GPU ends no server."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import pytest
import torch
from server.running_server import RunningServer, wait_until

from wllm.bench.shapes import write_shape
from wllm.factory import create_engine
from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.testing import running_server
from wllm_sched import ServedEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
SMALL, LARGE = "qwen2.5-0.5b", "llama-3.1-8b"
ASKED: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def used_mib() -> int:
    """GPU memory in use by all programs, as the driver's own tool tells it."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0])


def ask(server: RunningServer, name: str) -> tuple[float, list[int]]:
    """Seconds until a whole answer, and its tokens."""
    begin = perf_counter()
    fields = {**ASKED, "model": name, "return_token_ids": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=fields, timeout=120)
    assert answer.status_code == 200, answer.text
    return perf_counter() - begin, answer.json()["choices"][0]["token_ids"]


def test_memory_of_a_model_that_goes_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(
        "".join(f'["{name}"]\nmodel = "{write_shape(name, tmp_path).as_posix()}"\n' for name in (SMALL, LARGE)),
        encoding="utf-8",
    )
    empty = used_mib()
    flags = ("--load-format", "dummy", "--skip-tokenizer-init", "--keep-alive", "3s")
    with RunningServer(tmp_path, "--models-file", str(file), *flags) as server:
        server.wait_ready()
        wait_s, small = ask(server, SMALL)
        told = [f"first answer of {SMALL} {wait_s:.1f} s, {used_mib() - empty} MiB"]
        swap_s, large = ask(server, LARGE)
        told.append(f"of {LARGE}, in its place {swap_s:.1f} s, {used_mib() - empty} MiB")
        back_s, again = ask(server, SMALL)
        told.append(f"of {SMALL} again {back_s:.1f} s, {used_mib() - empty} MiB")
        assert again == small and len(large) == 8
        idle_s = wait_until(lambda: used_mib() - empty < 64, 30, "the GPU is empty again")
        told.append(f"empty {idle_s:.1f} s later: {used_mib() - empty} MiB")
        assert ask(server, SMALL)[1] == small
    print("; ".join(told))


class _Loser:
    # The engine of `wllm serve`, whose GPU is lost in its first step: an assertion of the device spoils the context for
    # good, as sleep and a reset driver do.

    def __init__(self, engine: ServedEngine, marker: Path) -> None:
        self._engine = engine
        self._marker = marker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> Any:
        if not self._marker.exists():
            self._marker.touch()
            numbers = torch.zeros(4, device="cuda")
            numbers[torch.tensor([9], device="cuda")] = 1
        return self._engine.step()


def create_loser(options: Mapping[str, Any]) -> _Loser:
    """The factory of the engine that loses its GPU once."""
    fields = dict(options)
    marker = Path(fields.pop("marker"))
    return _Loser(create_engine(fields), marker)


def test_a_lost_gpu_restarts_the_engine_and_clients_are_told(tmp_path: Path) -> None:
    model = str(write_shape(SMALL, tmp_path))
    options = {"model": model, "load_format": "dummy", "skip_tokenizer_init": True, "marker": str(tmp_path / "lost")}
    engine = EngineProcess(f"{__name__}:create_loser", options)
    with running_server(create_app([HostedModel(engine, ["m"])]), timeout_s=120) as url:
        lost = httpx.post(f"{url}/v1/completions", json={**ASKED, "model": "m"}, timeout=120)
        assert (lost.status_code, lost.json()["error"]["code"]) == (500, "engine_died")
        print(lost.json()["error"]["message"])
        assert "GPU" in lost.json()["error"]["message"]
        assert httpx.get(f"{url}/health").status_code == 503
        wait_until(lambda: httpx.get(f"{url}/health").status_code == 200, 60, "the engine is back")
        assert httpx.post(f"{url}/v1/completions", json={**ASKED, "model": "m"}, timeout=120).status_code == 200
        assert engine.num_restarts == 1
