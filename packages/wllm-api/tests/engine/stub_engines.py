"""Engine factories that misbehave; run in spawned children."""

import socket
import time
from typing import Any

from wllm_api.engine.scripted import ScriptedEngine, ScriptedOptions
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
