"""What the server needs of an engine: `wllm_api.engine.EngineProcess` satisfies it, and so can a fake in a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from wllm_api.errors import EngineState
from wllm_sched.messages import EngineStats, ModelInfo, TokenEvent
from wllm_sched.pooling import PooledText
from wllm_sched.sampling import SamplingParams


class EventSource(Protocol):
    """The events of one request; always ends, each sample with one final event."""

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Iterate over the events."""

    def abort(self, index: int | None = None) -> None:
        """End the request, or its sample `index`; never blocks, and does nothing after the end."""


class EngineClient(Protocol):
    """An engine seen from the server's event loop."""

    @property
    def state(self) -> EngineState:
        """What the engine is doing."""

    @property
    def info(self) -> ModelInfo | None:
        """The model's facts, None until it is loaded."""

    @property
    def stats(self) -> EngineStats:
        """The latest counters."""

    @property
    def num_restarts(self) -> int:
        """How often the engine has been restarted."""

    @property
    def error(self) -> str | None:
        """The text of the last failure."""

    async def start(self) -> None:
        """Begin loading; returns at once."""

    async def wait_ready(self) -> ModelInfo:
        """Wait until requests are taken; raises `EngineDied`."""

    async def stop(self) -> None:
        """End the engine."""

    def check_device(self) -> None:
        """Let the engine find out whether it still has its device; one that lost it is started again."""

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> EventSource:
        """Start a request; raises `EngineUnavailable` unless the state is "ready"."""

    def pool(self, texts: Sequence[PooledText], *, dimensions: int | None, normalize: bool | None) -> EventSource:
        """Ask for a vector of each text, as in `Pool`; raises `EngineUnavailable` unless the state is "ready"."""
