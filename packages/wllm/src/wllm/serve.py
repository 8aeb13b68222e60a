"""`wllm serve`: the HTTP server in this process, each model in an engine process. Loads no torch here."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wllm.console import say, settings_table
from wllm.served_models import ModelToServe
from wllm_api.api_keys import read_key_file
from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.server import serve as serve_app
from wllm_api.settings import Access, Limits
from wllm_api.tracing import tracer_from_environment
from wllm_runtime import EngineConfig
from wllm_sched import ModelInfo, Task

FACTORY = "wllm.factory:create_engine"
# What is said beside the address where it is not chat.
_FOR: Mapping[Task, str] = {
    "generate": "",
    "embed": " (an embedding model: /v1/embeddings, /v1/score, /v1/rerank)",
    "score": " (a cross-encoder: /v1/score, /v1/rerank)",
}
API_KEY_VARIABLE = "WLLM_API_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the server is told besides the engine's settings."""

    host: str
    port: int
    ollama_port: int | None
    api_keys: Sequence[str]
    api_key_file: Path | None
    rate_limit: int | None
    max_waiting: int
    max_body_mib: int
    no_auth: bool
    max_loaded_models: int
    allowed_origins: Sequence[str]
    allowed_hosts: Sequence[str]
    metrics_prefix: str
    log_requests: bool


class Announcer:
    """Tells the terminal where the server is and when it is ready."""

    def __init__(self, models: Sequence[ModelToServe]) -> None:
        self._first, *self._others = models
        self._url = ""

    def bound(self, url: str) -> None:
        """The address is ours; requests get a 503 until the first model is loaded."""
        self._url = url
        say(f"listening on {url}/v1, loading the model (Ctrl+C ends the server)")

    def ready(self, info: ModelInfo | None) -> None:
        """The first request would be taken; None when the first model could not be loaded."""
        if info is not None:
            say(settings_table(info.settings))
            say(f"ready: {', '.join(self._first.names)} on {self._url}/v1{_FOR[info.task]}")
        if self._others:
            say(f"loaded when a request names them: {', '.join(name for one in self._others for name in one.names)}")


def serve(models: Sequence[ModelToServe], options: ServeOptions) -> int:
    """Serve until Ctrl+C; returns the exit code. Raises `ConfigError` or a `ServeError`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # The hub client's requests are its own affair.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not options.log_requests:
        logging.getLogger("wllm_api.middleware.requests").setLevel(logging.WARNING)
    for model in models:
        # Built here only to refuse a bad value before anything starts; the engine process builds its own.
        EngineConfig(**model.settings)
        say(f"wLLM: model {model.settings['model']} ({model.reason})")
    announcer = Announcer(models)
    app = create_app(
        [
            HostedModel(
                EngineProcess(FACTORY, model.settings),
                model.names,
                parsers=model.parsers,
                keep_alive_s=model.keep_alive_s,
            )
            for model in models
        ],
        max_loaded=options.max_loaded_models,
        access=Access(
            api_keys=api_keys(options),
            allowed_origins=tuple(options.allowed_origins),
            allowed_hosts=(options.host, *options.allowed_hosts),
        ),
        limits=Limits(
            requests_per_minute=options.rate_limit,
            max_waiting=options.max_waiting,
            max_body_bytes=options.max_body_mib * 2**20,
        ),
        metrics_prefix=options.metrics_prefix,
        tracer=tracer_from_environment(),
        on_ready=announcer.ready,
    )
    return serve_app(
        app,
        options.host,
        options.port,
        ollama_port=options.ollama_port,
        no_auth=options.no_auth,
        on_bound=announcer.bound,
    )


def api_keys(options: ServeOptions) -> tuple[str, ...]:
    """The keys of the flags and the file, else that of the environment; raises `UnusableKey`."""
    in_file = read_key_file(options.api_key_file) if options.api_key_file is not None else ()
    return (*options.api_keys, *in_file) or tuple(filter(None, [os.environ.get(API_KEY_VARIABLE)]))
