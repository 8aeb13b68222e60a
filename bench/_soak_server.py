"""The server under the soak test: started as a user starts it, watched from outside, and ended with Ctrl+C."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

MIB = 1024 * 1024
START_S = 300
END_S = 20
_SERIES = re.compile(r"^wllm:(\w+)\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB. `vram` is what the first GPU has in use, by anyone; None without an NVIDIA driver."""

    server: float
    engine: float
    vram: float | None


class SoakServer:
    """`wllm serve` with these arguments; its log goes to `folder`."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.log = folder / "server.log"
        self.vram_before = vram_in_use()
        # A group of its own, so that Ctrl+C can be sent to it as a terminal does: to every process of the group.
        group: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        command = [sys.executable, "-m", "wllm", "serve", *arguments, "--port", "0"]
        started = perf_counter()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **group)
        self.url = self._wait_ready(started)
        self.start_s = perf_counter() - started
        self.end_s: float | None = None
        self._server = psutil.Process(self._process.pid)
        children = self._server.children(recursive=True)
        self._engine = max(children, key=lambda child: int(child.memory_info().rss))

    def model(self) -> dict[str, Any]:
        """The model's entry in /v1/models."""
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=30) as answer:
            entry: dict[str, Any] = json.load(answer)["data"][0]
            return entry

    def metrics(self) -> dict[str, float]:
        """Every series without further labels, by its name without the prefix."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            return {name: float(value) for name, value in _SERIES.findall(answer.read().decode())}

    def memory(self) -> Memory:
        """Now; 0 for a process that has ended."""
        return Memory(_rss(self._server), _rss(self._engine), vram_in_use())

    def text(self) -> str:
        """The log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def errors(self) -> list[str]:
        """Lines of the log that no request may cause."""
        return [line for line in self.text().splitlines() if re.match(r"(ERROR|CRITICAL) |Traceback", line)]

    def interrupt(self) -> list[str]:
        """Ctrl+C; what is wrong about how it ended."""
        if self._process.poll() is not None:
            return [f"the server had ended by itself, with exit code {self._process.returncode}"]
        if sys.platform == "win32":
            self._process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            os.killpg(self._process.pid, signal.SIGINT)
        begin = perf_counter()
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return [f"Ctrl+C did not end the server within {END_S} s"]
        wrong = [] if code == 0 else [f"Ctrl+C ended the server with exit code {code}"]
        _, alive = psutil.wait_procs([self._engine], timeout=2)
        wrong += [f"the engine process {process.pid} outlived the server" for process in alive]
        self.end_s = perf_counter() - begin
        return wrong

    def vram_after(self) -> float | None:
        """MiB in use once the server has ended; waits a little, since the driver frees it after the process's end."""
        deadline = perf_counter() + 5
        while True:
            now = vram_in_use()
            if now is None or self.vram_before is None or now <= self.vram_before or perf_counter() > deadline:
                return now
            time.sleep(0.2)

    def kill(self) -> None:
        """End what is left of it."""
        if self._process.poll() is None:
            family = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
            for member in family:
                member.kill()
            self._process.wait(10)

    def _wait_ready(self, started: float) -> str:
        while perf_counter() - started < START_S and self._process.poll() is None:
            found = re.search(r"listening on (http://\S+)/v1", self.text())
            if found and _is_ready(found.group(1)):
                return found.group(1)
            time.sleep(0.05)
        code = self._process.poll()
        what = f"was not ready within {START_S} s" if code is None else f"ended with exit code {code}"
        self.kill()
        raise SystemExit(f"soak: the server {what}; its log:\n{self.text()}")


def vram_in_use() -> float | None:
    """MiB in use on the first GPU; None without an NVIDIA driver. By process Windows does not tell."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return None
    query = [command, "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, encoding="utf-8", timeout=60)
    return float(done.stdout) if done.returncode == 0 else None


def _rss(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / MIB
    except psutil.NoSuchProcess:
        return 0.0


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
