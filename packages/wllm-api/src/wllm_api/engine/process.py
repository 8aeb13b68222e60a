"""The engine process as the server sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wllm_api.engine.stream import RequestStream
from wllm_api.errors import EngineState
from wllm_sched.messages import EngineStats, ModelInfo
from wllm_sched.sampling import SamplingParams


class EngineProcess:
    """Runs `factory` ("module:function") in a spawned process and restarts it when it dies.

    `on_restart()` is called after each restart, `on_failed(text)` when the engine is given up: `max_crashes` within
    `window_s` seconds, or a factory that raises on the first start. All methods belong to one event loop.
    """

    def __init__(
        self,
        factory: str,
        options: Mapping[str, object],
        *,
        on_restart: Callable[[], None] | None = None,
        on_failed: Callable[[str], None] | None = None,
        max_crashes: int = 3,
        window_s: float = 300.0,
    ) -> None:
        self.state: EngineState = "stopped"
        self.info: ModelInfo | None = None
        self.stats = EngineStats()
        self.pid: int | None = None
        self.num_restarts = 0
        self.error: str | None = None

    async def start(self) -> None:
        """Start the process; returns at once, in state "loading"."""
        raise NotImplementedError

    async def wait_ready(self) -> ModelInfo:
        """Wait until requests are taken; raises `EngineDied` when the engine failed or was stopped."""
        raise NotImplementedError

    async def stop(self, timeout_s: float = 5.0) -> None:
        """End the process, politely for `timeout_s` seconds; open streams get an error event."""
        raise NotImplementedError

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> RequestStream:
        """Start a request; raises `EngineUnavailable` unless the state is "ready"."""
        raise NotImplementedError
