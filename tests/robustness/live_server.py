"""The server that the fuzzers shoot at: a process of its own around the scripted engine.

`python live_server.py TASK` is the server; `LiveServer` starts it and looks at it from outside.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import httpx
import psutil

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.server import serve
from wllm_sched.messages import Task

if TYPE_CHECKING:
    from robustness.fuzz_cases import Case

START_S = 60
REQUEST_S = 30
# What each kind of server is asked, to see that it lives.
ALIVE: dict[Task, tuple[str, dict[str, object]]] = {
    "generate": ("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True}),
    "embed": ("/v1/embeddings", {"input": "Hi there"}),
    "score": ("/v1/score", {"text_1": "Hi there", "text_2": "you"}),
}
GENERATOR = "wllm_api.engine.scripted:create_scripted_engine"
POOLER = "wllm_api.engine.scripted_pooler:create_scripted_pooler"
MIB = 1024 * 1024


class LiveServer:
    """The process of a server that does `task` (generate, embed or score). Its log goes to a file in `folder`."""

    def __init__(self, folder: Path, task: Task = "generate") -> None:
        self.task = task
        self._log = folder / "server.log"
        with self._log.open("wb") as log:
            command = [sys.executable, "-X", "utf8", __file__, task]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.perf_counter() + START_S
        while (found := re.search(r"listening on (http://\S+)", self.log())) is None:
            assert self._process.poll() is None and time.perf_counter() < deadline, self.log()
            time.sleep(0.05)
        self.url = found[1]
        self.client = httpx.Client(base_url=self.url, timeout=REQUEST_S)
        while self.client.get("/health").status_code != 200:
            assert time.perf_counter() < deadline, self.log()
            time.sleep(0.05)
        self._engine_pid = self._engine().pid

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def send(self, case: Case) -> httpx.Response:
        """The answer, read to its end; raises `httpx.TimeoutException`."""
        url = f"{self.url}{case.path}"  # whole, so that a doubled slash stays one
        return self.client.request(case.method, url, headers=list(case.headers.items()), content=case.content)

    def memory(self) -> tuple[float, float]:
        """MiB of the server and of its engine."""
        engine = psutil.Process(self._engine_pid)
        return psutil.Process(self._process.pid).memory_info().rss / MIB, engine.memory_info().rss / MIB

    def check_alive(self) -> None:
        """Fail unless server and engine are those that were started, at rest, and without a fault in the log."""
        assert self._process.poll() is None, self.log()
        assert self._engine().pid == self._engine_pid, "the engine died"
        path, body = ALIVE[self.task]
        answer = self.client.post(path, json=body).raise_for_status().json()
        assert answer["usage"]["total_tokens"] > 3
        deadline = time.perf_counter() + REQUEST_S
        while 'wllm:num_requests_running{model_name="scripted"} 0.0' not in self.client.get("/metrics").text:
            assert time.perf_counter() < deadline, "requests of nobody run on"
            time.sleep(0.05)
        faults = [line for line in self.log().splitlines() if line.startswith(("ERROR", "CRITICAL", "Traceback"))]
        assert not faults, self.log()

    def _engine(self) -> psutil.Process:
        # The first that Python spawned; those that try grammars come later.
        children = psutil.Process(self._process.pid).children(recursive=True)
        spawned = [child for child in children if any("spawn_main" in word for word in child.cmdline())]
        return min(spawned, key=lambda child: float(child.create_time()))

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait(10)


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    task = sys.argv[1]
    # A short context, so that the longest answer of all is short.
    short = {"max_model_len": 256}
    engine = EngineProcess(GENERATOR, short) if task == "generate" else EngineProcess(POOLER, {**short, "task": task})
    app = create_app([HostedModel(engine, ["scripted"])])
    return serve(app, "127.0.0.1", 0, on_bound=lambda url: print(f"listening on {url}", flush=True))


if __name__ == "__main__":
    sys.exit(main())
