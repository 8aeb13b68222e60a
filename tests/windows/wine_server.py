"""`wllm.exe serve` under the Windows Python of Wine, for tests on this side to talk to."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import urllib.request
import uuid
from pathlib import Path
from time import perf_counter
from types import TracebackType

import openai
import psutil
from openai.types import Completion
from server.running_server import wait_until

WINE = Path(os.environ.get("WLLM_WINE", ""))
WLLM = r"C:\py\Scripts\wllm.exe"
MARK = "WLLM_WINE_SERVER"
# Wine is slow to start, and the machine may be busy.
START_S = 300


def on_windows(path: Path) -> str:
    """The name that a path of this side has there."""
    return "Z:" + str(path).replace("/", "\\")


def complete(client: openai.OpenAI, prompt: str) -> str:
    """A short greedy completion."""
    name = client.models.list().data[0].id
    return client.completions.create(model=name, prompt=prompt, temperature=0, max_tokens=8).choices[0].text


def begun(client: openai.OpenAI) -> openai.Stream[Completion]:
    """A long stream whose first tokens have come."""
    name = client.models.list().data[0].id
    events = client.completions.create(model=name, prompt="Once", max_tokens=4000, stream=True)
    next(events)
    return events


class WineServer:
    """The server. Its output is bytes until `text` asks for it, so that a wrong encoding shows.

    It comes through a pipe, or goes into the file `log`, as `wllm serve > log` of a command prompt.
    """

    def __init__(self, *arguments: str, log: Path | None = None) -> None:
        # Wine's children are not those of their parents on this side, but they inherit the environment.
        self._mark = uuid.uuid4().hex
        command = [WLLM, "serve", *arguments]
        if log is not None:
            command = ["cmd", "/c", *command, ">", on_windows(log), "2>&1"]
        self.process = subprocess.Popen(
            [str(WINE / "wine-run"), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, MARK: self._mark},
        )
        self._log = log
        self._client: openai.OpenAI | None = None
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while piece := self.process.stdout.read1():
            self._output += piece

    def text(self) -> str:
        output = bytes(self._output)
        if self._log is not None and self._log.exists():
            output += self._log.read_bytes()
        return output.decode("utf-8")

    @property
    def url(self) -> str:
        found = re.search(r"listening on (http://[^/\s]+)/v1", self.text())
        assert found is not None, self.text()
        return found.group(1)

    def wait_ready(self) -> WineServer:
        wait_until(lambda: self.process.poll() is not None or self.is_ready(), START_S, "the server is ready")
        assert self.process.poll() is None, self.text()
        return self

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (AssertionError, OSError):
            return False

    def client(self) -> openai.OpenAI:
        """One for all; it ends with the server."""
        if self._client is None:
            self._client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)
        return self._client

    def pythons(self) -> set[int]:
        """The ids of the server's Windows Pythons: of the server itself and of its engine."""
        return {process.pid for process in psutil.process_iter() if self._owns(process)}

    def _owns(self, process: psutil.Process) -> bool:
        try:
            command = " ".join(process.cmdline())
            return "python.exe" in command and process.environ().get(MARK) == self._mark
        except psutil.Error:
            return False

    def largest_bytes(self) -> int:
        """The memory of the largest of them."""
        return max((psutil.Process(pid).memory_info().rss for pid in self.pythons()), default=0)

    def kill(self, *, engine: bool = False) -> None:
        """End the server and not its engine, or the engine, which is the process that multiprocessing has started."""
        for pid in {self.process.pid, *self.pythons()}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if ("--multiprocessing-fork" in process.cmdline()) is engine:
                    process.kill()

    def interrupt(self) -> tuple[int, float]:
        """Ctrl+C: the exit code, and the seconds until the end."""
        # As a console does it: to every process. `wllm.exe` alone, which started python.exe, does not pass it on.
        for pid in {self.process.pid, *self.pythons()}:
            os.kill(pid, signal.SIGINT)
        begin = perf_counter()
        code = self.process.wait(60)
        return code, perf_counter() - begin

    def __enter__(self) -> WineServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()
        for pid in self.pythons():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        self.process.wait(20)
        self._reader.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


def has_ended_in_order(server: WineServer, events: openai.Stream[Completion], began: float) -> None:
    """A server whose console or session ended at `began` (`perf_counter`) tells its client and goes, engine and all."""
    try:
        list(events)
        raise AssertionError("the answer went on to its end")
    except openai.APIError as error:
        assert "shutting down" in str(error)
    assert server.process.wait(20) == 0
    assert perf_counter() - began < 5, "Windows ends what takes longer"
    assert "the console or the session ends" in server.text()
    wait_until(lambda: not server.pythons(), 5, "the engine ended too")
