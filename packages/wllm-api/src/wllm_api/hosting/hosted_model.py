"""One model that a server was told to serve, loaded or not.

Passive: `Residency` decides when it is loaded and unloaded and counts who uses it, routes read what is known of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from time import perf_counter

from wllm_api.client import EngineClient
from wllm_api.hosting.loaded_model import LoadedModel
from wllm_api.http_errors import UnknownParser
from wllm_api.metrics import ModelMetrics
from wllm_api.settings import Parsers
from wllm_api.tools import REASONING_PARSERS, TOOL_PARSERS
from wllm_sched.messages import ModelInfo


class HostedModel:
    """A configured model: `engine` can load it, requests may call it by each of `names`.

    The first name is the one that metrics and answers show. `keep_alive_s` is how long it stays loaded without
    requests; None is for ever. Raises `UnknownParser`.
    """

    def __init__(
        self,
        engine: EngineClient,
        names: Sequence[str],
        *,
        parsers: Parsers | None = None,
        keep_alive_s: float | None = None,
    ) -> None:
        parsers = parsers or Parsers()
        for kind, parser, known in (
            ("tool", parsers.tools, TOOL_PARSERS),
            ("reasoning", parsers.reasoning, REASONING_PARSERS),
        ):
            if parser not in known:
                raise UnknownParser(f"There is no {kind} parser '{parser}'. Use one of: {', '.join(known)}.")
        self.engine = engine
        self.names = tuple(dict.fromkeys(names))
        self.parsers = parsers
        self.keep_alive_s = keep_alive_s
        self.stay_s = keep_alive_s
        """The same, unless the latest request for it asked for something else."""
        self.loaded: LoadedModel | None = None
        self.is_resident = False
        """Whether it is loaded, or on its way there or back: it takes up memory."""
        self.is_loading = False
        self.is_leaving = False
        """Whether it takes no more requests, because it is to be unloaded when those that use it have ended."""
        self.is_sent_to_sleep = False
        """Whether it leaves because somebody asked for that, and not to make room."""
        self.is_wanted = False
        """Whether it is to be loaded although no request waits for it."""
        self.num_uses = 0
        self.last_used = perf_counter()
        self.num_loads = 0
        self.waiters: list[asyncio.Future[LoadedModel]] = []
        self.sleepers: list[asyncio.Future[None]] = []
        """Those who sent it to sleep and wait until it has gone."""
        self.wanted_since = 0.0
        self.failure: str | None = None
        self.retry_at = 0.0
        self._loading_text = asyncio.Lock()

    @property
    def name(self) -> str:
        """The name that metrics and answers show."""
        return self.names[0]

    @property
    def info(self) -> ModelInfo | None:
        """What is known of the model: None until it was loaded for the first time, kept when it is unloaded."""
        return self.engine.info

    @property
    def is_ready(self) -> bool:
        """Whether a request for it would be served at once."""
        return self.is_resident and not (self.is_loading or self.is_leaving) and self.engine.state == "ready"

    @property
    def is_put_off(self) -> bool:
        """Whether it could not be loaded, and is not to be tried again yet."""
        return self.failure is not None and perf_counter() < self.retry_at

    @property
    def takes_requests(self) -> bool:
        """Whether a request for it would be served, at once or when it is loaded."""
        if not self.is_resident:
            return not self.is_put_off
        return self.is_loading or self.is_leaving or self.engine.state == "ready"

    def open_waiters(self) -> list[asyncio.Future[LoadedModel]]:
        """The requests that still wait for it."""
        return [waiter for waiter in self.waiters if not waiter.done()]

    def open_sleepers(self) -> list[asyncio.Future[None]]:
        """Those of `sleepers` who were not told yet."""
        return [sleeper for sleeper in self.sleepers if not sleeper.done()]

    def idle_left_s(self) -> float:
        """Seconds that it stays yet when nobody uses it."""
        return math.inf if self.stay_s is None else self.last_used + self.stay_s - perf_counter()

    async def load_text(self, metrics: ModelMetrics) -> LoadedModel:
        """The text side of the model that the engine runs; made anew only when the model's text files have changed."""
        async with self._loading_text:
            info = self.engine.info
            assert info is not None, "an engine that was ready has told of its model"
            if self.loaded is not None and _text_of(self.loaded.info) == _text_of(info):
                self.loaded.info = info
            else:
                self.loaded = await asyncio.to_thread(
                    LoadedModel, info, self.parsers, engine=self.engine, metrics=metrics
                )
            return self.loaded


def _text_of(info: ModelInfo) -> tuple[object, ...]:
    return info.tokenizer_json, info.chat_template, dict(info.special_tokens), info.task
