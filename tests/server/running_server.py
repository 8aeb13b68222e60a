"""A `wllm serve` in a process of its own, as a user starts it, for the tests to talk to, break and stop."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import openai
import psutil

START_S = 180


def wait_until(true: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Seconds until the condition held; fails the test when it does not within `timeout_s`."""
    start = perf_counter()
    while not true():
        assert perf_counter() - start < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return perf_counter() - start


class RunningServer:
    """The server process. Its log goes to a file in `folder`; `environment` is added to this process's."""

    def __init__(
        self, folder: Path, *arguments: str, port: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = folder / f"server-{port}.log"
        command = [sys.executable, "-m", "wllm", "serve", *arguments, "--port", str(port)]
        # A group of its own, so that Ctrl+C can be sent to it as a terminal does: to every process of the group.
        group: dict[str, Any] = (
            {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
            if sys.platform == "win32"
            else {"start_new_session": True}
        )
        env = {**os.environ, **(environment or {})}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, **group)
        self._url: str | None = None

    @property
    def url(self) -> str:
        if self._url is None:
            found = re.search(r"listening on (http://\S+)/v1", self.text())
            assert found is not None, self.text()
            self._url = found.group(1)
        return self._url

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def wait_ready(self) -> RunningServer:
        wait_until(lambda: self.process.poll() is not None or self.is_ready(), START_S, f"ready; log: {self.log}")
        assert self.process.poll() is None, self.text()
        return self

    def is_ready(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200)
        except (AssertionError, urllib.error.URLError, OSError):
            return False

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=600)

    def model(self) -> str:
        with urllib.request.urlopen(f"{self.url}/v1/models") as answer:
            return str(json.load(answer)["data"][0]["id"])

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            text = answer.read().decode()
        found = re.search(rf"^wllm:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
        assert found is not None, f"no metric {name} in:\n{text}"
        return float(found.group(1))

    def engine(self) -> psutil.Process:
        """The engine process: the child that holds the model."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return max(children, key=lambda child: child.memory_info().rss)

    def interrupt(self) -> None:
        """Ctrl+C in the server's terminal."""
        if sys.platform == "win32":
            self.process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            os.killpg(self.process.pid, signal.SIGINT)

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):  # an engine ends with its server
                    member.kill()
            psutil.wait_procs(family, timeout=10)
            self.process.wait(10)
