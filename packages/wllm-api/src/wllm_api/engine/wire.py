"""What crosses the pipe between the server and its engine process, beside the messages of wllm-sched.

To the engine: `Submit` or `Pool`, `Abort`, `CheckDevice`, `Ping`, `Stop`. From it: `ModelInfo` first, then a `Batch`
a step, a `Pong` for each `Ping`, `DeviceWorks` for a `CheckDevice`; `Failure` is its last word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Protocol

from wllm_sched.messages import Abort, EngineStats, ModelInfo, Submit, TokenEvent
from wllm_sched.pooling import Pool

_values = attrgetter(*(field.name for field in fields(TokenEvent)))


class Channel(Protocol):
    """One end of a duplex `multiprocessing` pipe; its class differs between Windows and Linux."""

    def send_bytes(self, buf: bytes) -> None:
        """Send one message; blocks while the pipe is full."""

    def recv(self) -> Any:
        """Receive and unpickle one message; raises `EOFError` or `OSError` when the other end is gone."""

    def close(self) -> None:
        """Give the end back to the system."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine: requests that run are dropped."""


@dataclass(frozen=True, slots=True)
class CheckDevice:
    """Find out whether the device still works; if not, the engine ends, which is an answer."""


@dataclass(frozen=True, slots=True)
class DeviceWorks:
    """The other answer to `CheckDevice`."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a sign of life."""


@dataclass(frozen=True, slots=True)
class Pong:
    """A sign of life: threads of the engine process run, whatever its step is at."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The engine ends because of an exception: while it loaded the model, or in a step."""

    text: str
    trace: str
    loading: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one step as plain tuples (a quarter of the pickling time of 128 `TokenEvent`s)."""

    rows: tuple[tuple[Any, ...], ...]
    stats: EngineStats | None

    @classmethod
    def pack(cls, events: Iterable[TokenEvent], stats: EngineStats | None) -> Batch:
        """Pack events in the engine process."""
        return cls(tuple(map(_values, events)), stats)

    def events(self) -> list[TokenEvent]:
        """Unpack them in the server."""
        return [TokenEvent(*row) for row in self.rows]


ForEngineLoop = Submit | Pool | Abort | CheckDevice | Stop
ToEngine = ForEngineLoop | Ping
FromEngine = ModelInfo | Batch | Pong | DeviceWorks | Failure
