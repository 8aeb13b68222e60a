"""The state that all routes of one server share: its models, limits, metrics, and closing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from wllm_api.errors import EngineState
from wllm_api.hosting import HostedModel, LoadedModel, Residency
from wllm_api.http_errors import InvalidRequest, NotFound, Unavailable
from wllm_api.metrics import Metrics
from wllm_api.record import current_record
from wllm_api.response_store import ResponseStore
from wllm_api.settings import Access, Limits
from wllm_sched.messages import Task

_NOT_READY: dict[EngineState, tuple[str, str]] = {
    "ready": ("The model's tokenizer is still loading. Try again in a few seconds.", "model_loading"),
    "loading": ("The model is still loading. Try again in a few seconds.", "model_loading"),
    "restarting": ("The engine stopped and is being restarted. Try again in a few seconds.", "engine_restarting"),
    "failed": ("The engine has failed; the server's log has the reason.", "engine_failed"),
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
        self, models: Sequence[HostedModel], *, access: Access, limits: Limits, metrics: Metrics, max_loaded: int
    ) -> None:
        self.models = tuple(models)
        self.names = tuple(name for model in models for name in model.names)
        self.access = access
        self.limits = limits
        self.metrics = metrics
        self.residency = Residency(models, metrics, max_loaded=max_loaded, max_wait_s=limits.max_load_wait_s)
        self.ignored_seen: set[str] = set()
        self.running: set[AtWork] = set()
        self.responses = ResponseStore()
        self.closing = False
        self.created = int(time.time())

    @property
    def fatal(self) -> str | None:
        """Why the server cannot go on."""
        return self.residency.fatal

    @property
    def ready(self) -> bool:
        """Whether a request would be taken now; one for a model that is not loaded waits until it is."""
        takes = any(model.takes_requests for model in self.models)
        return takes and self.residency.has_started and not self.closing

    @property
    def num_waiting(self) -> int:
        """Requests that have no token yet."""
        return sum(generation.num_waiting for generation in self.running) + self.residency.num_waiting

    def hosted(self, name: str | None) -> HostedModel:
        """The model that a request names, loaded or not; None takes the first. Raises `NotFound`."""
        for model in self.models:
            if name is None or name in model.names:
                return model
        raise NotFound(
            f"The model '{name}' does not exist. This server has: {', '.join(self.names)}.",
            param="model",
            code="model_not_found",
        )

    def may_unload(self, model: HostedModel) -> bool:
        """Whether a client may have the model unloaded: the server was started as one that does so."""
        return len(self.models) > 1 or model.keep_alive_s is not None

    async def model(self, name: str | None, *, tasks: Sequence[Task] | None = ("generate",)) -> LoadedModel:
        """The model for a request that names it and needs one of `tasks` (None: any); waits until it is loaded.

        It stays loaded until the request ends. Raises `NotFound`, `Unavailable`, `ServerFault`, or `InvalidRequest` for
        a model that does something else.
        """
        hosted = self.hosted(name)
        record = current_record()
        record.model, record.served_by = name or hosted.name, hosted.name
        if self.closing or not self.residency.has_started:
            raise self.not_ready()
        if hosted.info is not None:
            _check_task(hosted.info.task, tasks, record.model)
        if not hosted.is_ready:
            self.admit()
        loaded = await self.residency.acquire(hosted)
        record.at_end.callback(self.residency.release, hosted)
        if hosted.engine.state != "ready":
            raise self.not_ready(hosted.engine.state)
        if loaded.info is not hosted.info:  # the engine was restarted
            loaded = await hosted.load_text(self.metrics.of(hosted.name))
        _check_task(loaded.info.task, tasks, record.model)
        return loaded

    def not_ready(self, state: EngineState | None = None) -> Unavailable:
        """The refusal that says what the server, or an engine in `state`, is doing instead of taking requests."""
        first = self.models[0]
        if self.closing:
            state = "stopped"
        elif not self.residency.has_started:
            state = "loading"
        elif state is None:
            state = first.engine.state if first.is_resident else "failed"
        message, code = _NOT_READY[state]
        return Unavailable(message, code=code)

    def admit(self) -> None:
        """Raise `Unavailable` when too many requests wait already."""
        waiting = self.num_waiting
        if waiting >= self.limits.max_waiting:
            raise Unavailable(
                f"{waiting} requests are waiting, which is the limit. Try again later.", code="server_is_overloaded"
            )

    def abort_running(self) -> None:
        """End every running or waiting request; their clients are told that the server shuts down."""
        self.residency.refuse_waiting()
        for generation in list(self.running):
            generation.abort()


def _check_task(does: Task, wanted: Sequence[Task] | None, name: str) -> None:
    if wanted is not None and does not in wanted:
        raise InvalidRequest(
            f"The model '{name}' {_DOES[does]}. {_ASKED[wanted[0]]}", param="model", code="unsupported_task"
        )
