"""Engine factories that misbehave; run in spawned children."""

import gc
import socket
import time
from collections import deque
from typing import Any

from wllm_api.engine.scripted import ScriptedEngine, ScriptedOptions
from wllm_sched.errors import RequestRefused
from wllm_sched.messages import Submit, TokenEvent

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
