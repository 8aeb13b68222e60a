"""The API process around the scripted engine, as a program: `python bench/_scripted_server.py STEP_MS MAX_NUM_SEQS`.

Prints its URL when it takes requests. `Scripted` starts it and reads the processor time that the API process took.
"""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType

import psutil

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.server import serve
from wllm_sched import ModelInfo

FACTORY = "wllm_api.engine.scripted:create_scripted_engine"


class Scripted:
    """The server in a process of its own."""

    def __init__(self, step_ms: float, max_num_seqs: int) -> None:
        command = [sys.executable, __file__, str(step_ms), str(max_num_seqs)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8")
        assert self._process.stdout is not None, "stdout is a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("The server did not start; run bench/_scripted_server.py 0 1 to see why.")
        self.url: str = json.loads(line)

    def cpu_s(self) -> float:
        """Seconds of processor time of the API process; the engine has its own."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def __enter__(self) -> Scripted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> int:
    """Serve until killed."""
    step_ms, max_num_seqs = float(sys.argv[1]), int(sys.argv[2])
    urls: list[str] = []

    def ready(info: ModelInfo | None) -> None:
        print(json.dumps(urls[0]), flush=True)

    engine = EngineProcess(FACTORY, {"step_s": step_ms / 1000, "max_num_seqs": max_num_seqs})
    app = create_app([HostedModel(engine, ["scripted"])], on_ready=ready)
    return serve(app, "127.0.0.1", 0, on_bound=urls.append)


if __name__ == "__main__":
    sys.exit(main())
