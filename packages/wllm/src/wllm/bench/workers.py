"""`Worker`: the parent's side of an engine in a process of its own. It never loads an engine itself."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

from wllm.bench.errors import BenchError

# The worker's folder runs under its own name, so that wllm itself need not be importable in that Python.
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from worker.main import main; del sys.path[0]; main()"
_FOLDER = Path(__file__).parent
_LOG_TAIL = 6  # lines of a dead worker's output that go into its error


class WorkerError(BenchError):
    """The engine could not do what a row needs; `kind` is absent, unsupported, failed or died."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """One engine's process. `name` is the row's engine; `python` runs it; its output goes to `log`.

    `limit_s` is the longest wait for an answer, after which the process is ended.
    """

    def __init__(self, name: str, python: str, environment: Mapping[str, str], log: Path, limit_s: float) -> None:
        self.name = name
        self.limit_s = limit_s
        self._log = log
        self._answers: queue.Queue[str] = queue.Queue()
        self._children: set[psutil.Process] = set()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [python, "-c", _BOOT, str(_FOLDER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **environment},
                cwd=log.parent,
            )
        # A thread reads, so that a worker's death is noticed even while a child of its keeps the pipe open.
        self._reader = threading.Thread(target=self._read, name=f"bench-{name}", daemon=True)
        self._reader.start()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer; raises `WorkerError`, after which a dead worker stays dead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the pipe is broken, or closed since an earlier end
            raise self._death() from None
        answer: dict[str, Any] = json.loads(self._wait())
        if do == "start":
            # Whoever dies leaves its children to no one: remember them while they can be found.
            self._children.update(self._family())
        if "error" in answer:
            raise WorkerError(answer["kind"], answer["error"])
        return answer

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        """Seconds that all answers took, as the worker's clock saw them."""
        return float(self.ask("generate", prompts=prompts, output_lengths=output_lengths)["seconds"])

    def close(self) -> dict[str, int]:
        """Ask it to end, then make sure that it and its children are gone; what its engine counted."""
        counted: dict[str, int] = {}
        try:
            if self._process.poll() is None:
                counted = self.ask("close").get("counted", {})
                self._process.wait(10)
        except (WorkerError, subprocess.TimeoutExpired):
            pass  # it is ended below either way, and its rows are written already
        finally:
            self._kill()
        return counted

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.decode())

    def _wait(self) -> str:
        begin = perf_counter()
        while True:
            try:
                return self._answers.get(timeout=0.2)
            except queue.Empty:
                if self._process.poll() is not None and self._answers.empty():
                    raise self._death() from None
                if perf_counter() - begin > self.limit_s:
                    self._kill()
                    raise WorkerError("died", f"gave no answer within {self.limit_s:.0f} s and was ended") from None

    def _death(self) -> WorkerError:
        code = self._process.wait()
        tail = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-_LOG_TAIL:]
        self._kill()
        return WorkerError("died", f"its process ended with code {code}: {' / '.join(tail) or 'no output'}")

    def _family(self) -> list[psutil.Process]:
        try:
            itself = psutil.Process(self._process.pid)
            return [itself, *itself.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _kill(self) -> None:
        for process in {*self._children, *self._family()}:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass  # ended by itself meanwhile
        self._process.wait()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass  # what was not sent has nobody to read it
        self._reader.join(10)
        if not self._reader.is_alive():
            self._process.stdout.close()
