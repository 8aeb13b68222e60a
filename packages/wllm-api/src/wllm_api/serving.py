"""The state that all routes of one server share: the engine, the model's text side, limits, metrics, and closing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from wllm_api.client import EngineClient
from wllm_api.errors import EngineState
from wllm_api.http_errors import InvalidRequest, NotFound, Unavailable
from wllm_api.metrics import Metrics
from wllm_api.model import ServedModel
from wllm_api.record import current_record
from wllm_api.response_store import ResponseStore
from wllm_api.settings import Access, Limits, Parsers
from wllm_sched.messages import ModelInfo, Task

_NOT_READY: dict[EngineState, tuple[str, str]] = {
    "ready": ("The model's tokenizer is still loading. Try again in a few seconds.", "model_loading"),
    "loading": ("The model is still loading. Try again in a few seconds.", "model_loading"),
    "restarting": ("The engine stopped and is being restarted. Try again in a few seconds.", "engine_restarting"),
    "failed": ("The engine has failed and will not come back; restart the server.", "engine_failed"),
    "stopped": ("The server is shutting down.", "shutting_down"),
}


class AtWork(Protocol):
    """A request that runs or waits in the engine."""

    @property
    def num_waiting(self) -> int:
        """How much of it waits for its turn."""

    def abort(self) -> None:
        """End it in the engine."""


_DOES: dict[Task, str] = {
    "generate": "writes text and does not support embeddings or scores",
    "embed": "makes embeddings and does not support answers. Use /v1/embeddings, /v1/score or /v1/rerank",
    "score": "scores pairs of texts and does not support answers or embeddings. Use /v1/score or /v1/rerank",
}
_ASKED: dict[Task, str] = {
    "generate": "For answers start a server with a model that writes text.",
    "embed": "For embeddings start a server with an embedding model, or this one with --task embed.",
    "score": "For scores start a server with a cross-encoder or an embedding model.",
}


class Serving:
    """One server's shared state; `fatal` is the reason why it must end, None while all is well."""

    def __init__(
        self,
        engine: EngineClient,
        names: Sequence[str],
        *,
        access: Access,
        limits: Limits,
        metrics: Metrics,
        parsers: Parsers,
    ) -> None:
        self.engine = engine
        self.names = tuple(names)
        self.access = access
        self.limits = limits
        self.metrics = metrics
        self.parsers = parsers
        self.ignored_seen: set[str] = set()
        self.running: set[AtWork] = set()
        self.responses = ResponseStore()
        self.closing = False
        self.created = int(time.time())
        self._fault: str | None = None
        self._model: ServedModel | None = None
        self._loading = asyncio.Lock()

    @property
    def fatal(self) -> str | None:
        """Why the server cannot go on."""
        if self._fault is None and self.engine.state == "failed":
            return self.engine.error or "the engine failed"
        return self._fault

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now."""
        return self.engine.state == "ready" and self._model is not None and not self.closing

    @property
    def num_waiting(self) -> int:
        """Requests that have no token yet."""
        return sum(generation.num_waiting for generation in self.running)

    async def model(self, name: str | None, *, tasks: Sequence[Task] | None = ("generate",)) -> ServedModel:
        """The model for a request that names it (None takes the only one) and needs one of `tasks` (None: any).

        Raises `NotFound`, `Unavailable`, or `InvalidRequest` for a model that does something else.
        """
        if name is not None and name not in self.names:
            raise NotFound(
                f"The model '{name}' does not exist. This server has: {', '.join(self.names)}.",
                param="model",
                code="model_not_found",
            )
        current_record().model = name or self.names[0]
        if not self.ready:
            raise self.not_ready()
        if self._model is None or self._model.info is not self.engine.info:
            await self._load()
        if self._model is None:
            raise self.not_ready()
        does = self._model.info.task
        if tasks is not None and does not in tasks:
            raise InvalidRequest(
                f"The model '{name or self.names[0]}' {_DOES[does]}. {_ASKED[tasks[0]]}",
                param="model",
                code="unsupported_task",
            )
        return self._model

    def not_ready(self) -> Unavailable:
        """The refusal that says what the server is doing instead of taking requests."""
        message, code = _NOT_READY["stopped" if self.closing else self.engine.state]
        return Unavailable(message, code=code)

    async def prepare(self) -> None:
        """Wait for the engine and load the text side, so that the first request finds all in place."""
        await self.engine.wait_ready()
        await self._load()

    def admit(self) -> None:
        """Raise `Unavailable` when too many requests wait already."""
        waiting = self.num_waiting
        if waiting >= self.limits.max_waiting:
            raise Unavailable(
                f"{waiting} requests are waiting, which is the limit. Try again later.", code="server_is_overloaded"
            )

    def abort_running(self) -> None:
        """End every running request; their clients are told that the server shuts down."""
        for generation in list(self.running):
            generation.abort()

    async def _load(self) -> None:
        async with self._loading:
            info = self.engine.info
            if info is None or (self._model is not None and self._model.info is info):
                return
            try:
                self._model = await asyncio.to_thread(_text_side, info, self.parsers)
            except Exception as error:
                # Whatever it is: without its text side the server would say "loading" for ever.
                self._fault = f"the model's text side cannot be used: {type(error).__name__}: {error}"
                raise


def _text_side(info: ModelInfo, parsers: Parsers) -> ServedModel:
    model = ServedModel(info, parsers)
    if info.task == "generate":
        # Now, since it holds up all streams.
        model.grammars.load()
    return model
