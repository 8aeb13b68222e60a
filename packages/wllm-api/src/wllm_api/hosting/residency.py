"""Decides which models of a server are loaded, and when.

One task starts and stops all engines, one at a time, so nothing here races. A request asks for its model with `acquire`
and gives it back with `release`; a model that is in use is never unloaded. Who asks for a model that is not loaded
waits for it. When there is no room, the model that was unused for longest goes; when all are in use, one of them takes
no more requests, and goes when its last has ended: so neither of two models can keep the other out for ever.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from wllm_api.errors import EngineDied
from wllm_api.hosting.hosted_model import HostedModel
from wllm_api.hosting.loaded_model import LoadedModel
from wllm_api.http_errors import Conflict, ServerFault, Unavailable
from wllm_api.metrics import Metrics

logger = logging.getLogger(__name__)

# A model that could not be loaded is not tried again before: each try may cost another model its place.
RETRY_S = 60.0


class Residency:
    """Keeps at most `max_loaded` models loaded; a request waits `max_wait_s` seconds for one."""

    def __init__(self, models: Sequence[HostedModel], metrics: Metrics, *, max_loaded: int, max_wait_s: float) -> None:
        self._models = tuple(models)
        self._metrics = metrics
        self._max_loaded = max_loaded
        self._max_wait_s = max_wait_s
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_started = asyncio.Event()

    @property
    def has_started(self) -> bool:
        """Whether the first model is loaded, or could not be."""
        return self._has_started.is_set()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their model."""
        return sum(len(model.waiters) for model in self._models)

    @property
    def fatal(self) -> str | None:
        """Why the server cannot go on: its only model was never loaded or crashed too often, or our own fault."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            return f"the task that loads models ended: {self._task.exception()!r}"
        (first, *others) = self._models
        if others or first.is_loading:
            return None
        if first.is_resident and first.engine.state == "failed":
            return first.engine.error or "the engine failed"
        return first.failure if not first.num_loads else None

    async def start(self) -> None:
        """Begin to load the first model; returns when that has ended, well or not."""
        assert self._task is None, "a server's models are started once"
        self._models[0].is_wanted = True
        self._task = asyncio.create_task(self._work(), name="wllm-residency")
        await self._has_started.wait()

    async def stop(self) -> None:
        """End all engines; who waits is refused."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.refuse_waiting()
        await asyncio.gather(*(model.engine.stop() for model in self._models))

    def refuse_waiting(self) -> None:
        """Tell those who wait for a model, or until one has gone, that the server shuts down."""
        for model in self._models:
            waiting: list[asyncio.Future[Any]] = [*model.open_waiters(), *model.open_sleepers()]
            for waiter in waiting:
                waiter.set_exception(Unavailable("The server is shutting down.", code="shutting_down"))

    async def acquire(self, model: HostedModel) -> LoadedModel:
        """The model, loaded, and in use until `release`; waits for it. Raises `Unavailable` or `ServerFault`."""
        self.note_given_up()
        if model.is_resident and not (model.is_loading or model.is_leaving):
            assert model.loaded is not None, "what was loaded has a text side"
            self._use(model)
            return model.loaded
        if model.is_put_off:
            raise self._failed(model)
        waiter: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()
        if not model.waiters:
            model.wanted_since = perf_counter()
        model.waiters.append(waiter)
        self._stirred.set()
        try:
            async with asyncio.timeout(self._max_wait_s):
                return await waiter
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(model)  # it came in the moment when nobody waited any more
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Unavailable(
                f"The model '{model.name}' could not be loaded within {self._max_wait_s:g} s: the models that are "
                "loaded are at work, or it is large. Try again later.",
                code="model_loading",
            ) from None
        finally:
            model.waiters.remove(waiter)
            self._stirred.set()

    def note_given_up(self) -> None:
        """See whose engines were given up: those models are not loaded any more, and tried again later."""
        if self.fatal is not None:
            return  # that one failure ends the server
        for model in self._models:
            if model.is_resident and not model.is_loading and model.engine.state == "failed":
                self._note_failure(model, model.engine.error or "its engine failed")
                logger.error("the model %s is not loaded any more: %s", model.name, model.failure)

    def release(self, model: HostedModel) -> None:
        """Give back what `acquire` gave."""
        model.num_uses -= 1
        assert model.num_uses >= 0, "a model is given back once"
        model.last_used = perf_counter()
        if not model.num_uses:
            self._stirred.set()

    def wake(self, model: HostedModel) -> None:
        """Keep a model that was sent to sleep and has not gone yet; who sent it is told."""
        if model.is_sent_to_sleep:
            model.is_sent_to_sleep = False
            for sleeper in model.open_sleepers():
                sleeper.set_exception(Conflict(f"The model '{model.name}' was woken meanwhile.", code="model_woken"))
            self._stirred.set()

    async def sleep(self, models: Sequence[HostedModel]) -> None:
        """Send models to sleep and return when all have gone.

        Raises `Conflict` when one is woken before, `Unavailable` when the server ends.
        """
        gone = [(model, asyncio.get_running_loop().create_future()) for model in models if model.is_resident]
        for model, sleeper in gone:
            self.send_to_sleep(model)
            model.sleepers.append(sleeper)
        try:
            await asyncio.gather(*(sleeper for _, sleeper in gone))
        finally:
            for model, sleeper in gone:
                model.sleepers.remove(sleeper)

    def send_to_sleep(self, model: HostedModel) -> None:
        """Unload a model as soon as no request uses it; the next request for it loads it again."""
        if model.is_resident:
            model.is_sent_to_sleep = model.is_leaving = True
            self._stirred.set()

    async def _work(self) -> None:
        try:
            while True:
                await self._act_or_wait()
        finally:
            self._has_started.set()

    async def _act_or_wait(self) -> None:
        self._stirred.clear()
        if self.fatal is not None:
            await self._stirred.wait()  # the server ends
        elif (leaving := self._next_to_unload()) is not None:
            await self._unload(leaving)
        elif wanted := self._wanted():
            if sum(model.is_resident for model in self._models) < self._max_loaded:
                await self._load(wanted[0])
                self._has_started.set()
            else:
                await self._stirred.wait()
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_idle_s()):
                    await self._stirred.wait()

    def _wanted(self) -> list[HostedModel]:
        """The models that are to be loaded, who asked first first."""
        asked = (model for model in self._models if not model.is_resident)
        return sorted(
            (model for model in asked if model.is_wanted or model.open_waiters()), key=lambda model: model.wanted_since
        )

    def _next_to_unload(self) -> HostedModel | None:
        resident = [model for model in self._models if model.is_resident]
        idle = [model for model in resident if not model.num_uses]
        for model in idle:
            if model.is_sent_to_sleep or model.idle_left_s() <= 0:
                return model
        if not self._wanted() or len(resident) < self._max_loaded:
            for model in resident:
                if model.is_leaving and not model.is_sent_to_sleep:
                    model.is_leaving = False
                    self._grant(model)
            return None
        if idle:
            return min(idle, key=lambda model: model.last_used)
        if not any(model.is_leaving for model in resident):
            min(resident, key=lambda model: model.last_used).is_leaving = True
        return None

    def _until_idle_s(self) -> float | None:
        idle = [model.idle_left_s() for model in self._models if model.is_resident and not model.num_uses]
        return min((left for left in idle if left < math.inf), default=None)

    async def _load(self, model: HostedModel) -> None:
        model.is_resident = model.is_loading = True
        model.is_wanted, model.failure = False, None
        started = perf_counter()
        try:
            await model.engine.start()
            await model.engine.wait_ready()
            await model.load_text(self._metrics.of(model.name))
        except Exception as error:
            # Whatever it is, it is this model's: those beside it go on.
            await model.engine.stop()
            text = str(error) if isinstance(error, EngineDied) else f"{type(error).__name__}: {error}"
            self._note_failure(model, text)
            if len(self._models) > 1 or model.num_loads:  # else the server ends, and says it
                logger.error("the model %s could not be loaded: %s", model.name, text)
            for waiter in model.open_waiters():
                waiter.set_exception(self._failed(model))
        else:
            model.num_loads += 1
            model.last_used = perf_counter()
            self._metrics.of(model.name).loads.inc()
            if len(self._models) > 1 or model.num_loads > 1:
                logger.info("loaded %s in %.1f s", model.name, perf_counter() - started)
            self._grant(model)
        finally:
            model.is_loading = False

    async def _unload(self, model: HostedModel) -> None:
        model.is_leaving, model.is_sent_to_sleep = True, False  # too late to wake it
        await model.engine.stop()
        self._note_gone(model)
        logger.info("unloaded %s", model.name)

    def _grant(self, model: HostedModel) -> None:
        assert model.loaded is not None, "only a loaded model is given to requests"
        for waiter in model.open_waiters():
            self._use(model)
            waiter.set_result(model.loaded)

    def _use(self, model: HostedModel) -> None:
        model.num_uses += 1
        model.last_used = perf_counter()
        model.stay_s = model.keep_alive_s

    def _note_gone(self, model: HostedModel) -> None:
        model.is_resident = model.is_leaving = model.is_sent_to_sleep = False
        for sleeper in model.open_sleepers():
            sleeper.set_result(None)

    def _note_failure(self, model: HostedModel, text: str) -> None:
        self._note_gone(model)
        model.failure = text
        model.retry_at = perf_counter() + RETRY_S

    def _failed(self, model: HostedModel) -> ServerFault:
        left_s = max(1, math.ceil(model.retry_at - perf_counter()))
        return ServerFault(
            f"The model '{model.name}' is not available: {model.failure} A request after {left_s} s tries to load it "
            "again.",
            code="model_load_failed",
        )
