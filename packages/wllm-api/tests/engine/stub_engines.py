"""Engine factories that misbehave; run in spawned children."""

import dataclasses
import gc
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from wllm_api.engine.scripted import ScriptedEngine, ScriptedOptions
from wllm_sched.errors import DeviceLost, RequestRefused
from wllm_sched.messages import ModelInfo, Submit, TokenEvent

EXPLODES = 300
BREAKS_AN_INVARIANT = 301


class _Exploding(ScriptedEngine):
    def submit(self, request: Submit) -> None:
        if EXPLODES in request.prompt_token_ids:
            raise ValueError("boom")
        assert BREAKS_AN_INVARIANT not in request.prompt_token_ids, "I99: broken"
        super().submit(request)


def exploding(options: dict[str, Any]) -> ScriptedEngine:
    """Fails in `submit` for certain tokens."""
    return _Exploding(ScriptedOptions(**options))


class _Deaf(ScriptedEngine):
    def step(self) -> list[TokenEvent]:
        if self.stats().steps_total == 0:
            sum(range(100_000_000))  # a second or more in C that never releases the GIL: nobody reads the pipe
        return super().step()


def deaf(options: dict[str, Any]) -> ScriptedEngine:
    """Holds the GIL for a second or more in its first step."""
    return _Deaf(ScriptedOptions(**options))


class _Frozen(ScriptedEngine):
    def step(self) -> list[TokenEvent]:
        sum(range(10**15))  # days in C that never release the GIL
        return super().step()


def frozen(options: dict[str, Any]) -> ScriptedEngine:
    """Holds the GIL for ever in its first step."""
    return _Frozen(ScriptedOptions(**options))


connection: socket.socket | None = None


class _Busy(ScriptedEngine):
    def step(self) -> list[TokenEvent]:
        while True:
            pass


def probed(options: dict[str, Any]) -> ScriptedEngine:
    """Connects to `port` and keeps the connection until the process ends; `phase` says what it does then."""
    global connection
    connection = socket.create_connection(("127.0.0.1", options["port"]))
    connection.sendall(b"x")
    if options["phase"] == "loading":
        time.sleep(600)
    return (_Busy if options["phase"] == "computing" else ScriptedEngine)(ScriptedOptions())


class _Litter:
    def __init__(self) -> None:
        self.itself = self


class _Littering(ScriptedEngine):
    def __init__(self, options: ScriptedOptions) -> None:
        super().__init__(options)
        self.model = [[number] for number in range(1_000_000)]

    def submit(self, request: Submit) -> None:
        recent: deque[_Litter] = deque(maxlen=20_000)  # who grows that old is not collected with the young
        for _ in range(200_000):
            recent.append(_Litter())
        raise RequestRefused(str(sum(type(one) is _Litter for one in gc.get_objects())))


def littering(options: dict[str, Any]) -> ScriptedEngine:
    """Holds a million objects; leaves 200,000 that only the collector frees, and refuses with the number alive."""
    return _Littering(ScriptedOptions(**options))


class _OnGpu(ScriptedEngine):
    def __init__(self, lost: Path) -> None:
        super().__init__(ScriptedOptions())
        self._lost = lost

    @property
    def model_info(self) -> ModelInfo:
        return dataclasses.replace(super().model_info, device="cuda:0", restart_options={"device": "cuda"})

    def check_device(self) -> None:
        if self._lost.exists():
            raise DeviceLost("the GPU no longer works for this process: it is in a file")

    def step(self) -> list[TokenEvent]:
        self.check_device()
        return super().step()


def on_gpu(options: dict[str, Any]) -> ScriptedEngine:
    """On a GPU that is lost while a file "lost" is in `folder`, and not there for `away` loads after that."""
    lost, loads = Path(options["folder"], "lost"), Path(options["folder"], "loads")
    with loads.open("a", encoding="utf-8") as file:
        file.write(f"{options['device']} ")
    if lost.exists() and len(loads.read_text("utf-8").split()) <= 1 + options["away"]:
        raise RuntimeError("there is no GPU here")
    lost.unlink(missing_ok=True)
    return _OnGpu(lost)


class _Clinging(ScriptedEngine):
    def step(self) -> list[TokenEvent]:
        threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
        raise DeviceLost("the GPU no longer works for this process, and its driver lets no process end")


def clinging(options: dict[str, Any]) -> ScriptedEngine:
    """Loses its device in its first step, and then does not end."""
    return _Clinging(ScriptedOptions(**options))


class _Stuck(ScriptedEngine):
    def check_device(self) -> None:
        time.sleep(600)


def stuck(options: dict[str, Any]) -> ScriptedEngine:
    """Hangs when it looks for its device."""
    return _Stuck(ScriptedOptions(**options))
