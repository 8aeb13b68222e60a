"""Which models are loaded: random requests for several models, against what must hold at every moment."""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from wllm_api.engine.scripted_model import build_tokenizer, describe
from wllm_api.errors import EngineDied, EngineState
from wllm_api.hosting import HostedModel, Residency
from wllm_api.hosting import residency as residency_module
from wllm_api.http_errors import Conflict, HttpError, ServerFault, Unavailable
from wllm_api.metrics import Metrics
from wllm_sched.messages import EngineStats, ModelInfo

# An embedding model, since what grammars need takes a while to load.
INFO = replace(describe(build_tokenizer(), max_model_len=64, num_blocks=9, chat_template=None), task="embed")


class FakeEngine:
    """Loads in no time or a little, never computes; `can_load` tells what its next loads do."""

    def __init__(self, on_start: Callable[[], None] = lambda: None, *, load_s: float = 0.0) -> None:
        self.state: EngineState = "stopped"
        self.info: ModelInfo | None = None
        self.stats = EngineStats()
        self.num_restarts = 0
        self.error: str | None = None
        self.can_load = True
        self.load_s = load_s
        self.num_starts = 0
        self._on_start = on_start

    async def start(self) -> None:
        assert self.state in ("stopped", "failed")
        self.state = "loading"
        self.num_starts += 1
        self._on_start()

    async def wait_ready(self) -> ModelInfo:
        await asyncio.sleep(self.load_s)
        if not self.can_load:
            self.state, self.error = "failed", "no weights."
            raise EngineDied(self.error)
        self.state, self.info = "ready", INFO
        return INFO

    def check_device(self) -> None:
        """Nothing: there is none."""

    async def stop(self, timeout_s: float = 5.0) -> None:
        await asyncio.sleep(self.load_s)
        if self.state != "failed":
            self.state = "stopped"


class Hosts:
    """Models a, b, c ... and their residency."""

    def __init__(self, count: int, *, max_loaded: int = 1, max_wait_s: float = 30.0, **options: Any) -> None:
        self.engines = [FakeEngine(self.check, load_s=options.get("load_s", 0.0)) for _ in range(count)]
        self.models = [
            HostedModel(engine, [name], keep_alive_s=options.get("keep_alive_s"))  # type: ignore[arg-type]
            for engine, name in zip(self.engines, "abcdefgh", strict=False)
        ]
        self.max_loaded = max_loaded
        metrics = Metrics({model.name: model.engine for model in self.models}, "wllm:")
        self.residency = Residency(self.models, metrics, max_loaded=max_loaded, max_wait_s=max_wait_s)

    def check(self) -> None:
        """What must hold whenever an engine starts."""
        assert sum(engine.state in ("loading", "ready") for engine in self.engines) <= self.max_loaded

    def loaded(self) -> str:
        return "".join(model.name for model in self.models if model.engine.state == "ready")

    async def use(self, model: HostedModel, seconds: float = 0.0) -> None:
        await self.residency.acquire(model)
        try:
            await asyncio.sleep(seconds)
            assert model.engine.state == "ready", "nothing unloads a model in use"
        finally:
            self.residency.release(model)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_the_first_is_loaded_at_the_start_and_the_others_when_asked_for() -> None:
    async def test() -> None:
        hosts = Hosts(3, max_loaded=2)
        await hosts.residency.start()
        assert hosts.loaded() == "a"
        await hosts.use(hosts.models[2])
        assert hosts.loaded() == "ac"
        await hosts.use(hosts.models[1])
        assert hosts.loaded() == "bc", "the one unused for longest makes room"
        await hosts.residency.stop()
        assert hosts.loaded() == ""

    run(test())


def test_an_idle_model_goes_after_its_time_and_one_in_use_does_not() -> None:
    async def test() -> None:
        hosts = Hosts(2, max_loaded=2, keep_alive_s=0.05)
        await hosts.residency.start()
        using = asyncio.create_task(hosts.use(hosts.models[1], 0.3))
        await until(lambda: hosts.loaded() == "b")
        await using
        assert hosts.loaded() == "b"
        await until(lambda: hosts.loaded() == "")
        await hosts.residency.stop()

    run(test())


def test_neither_of_two_busy_models_keeps_the_other_out() -> None:
    async def test() -> None:
        hosts = Hosts(2)
        await hosts.residency.start()
        served = {"a": 0, "b": 0}

        async def ask(model: HostedModel) -> None:
            while min(served.values()) < 20:
                await hosts.use(model, 0.001)
                served[model.name] += 1

        # Three clients of each, so that there is never a moment without a request.
        async with asyncio.TaskGroup() as group:
            for model in hosts.models * 3:
                group.create_task(ask(model))
        await hosts.residency.stop()

    run(test())


def test_who_waits_too_long_is_told_and_who_goes_away_is_forgotten() -> None:
    async def test() -> None:
        hosts = Hosts(2, max_wait_s=0.05)
        first, second = hosts.models
        await hosts.residency.start()
        await hosts.residency.acquire(first)
        with pytest.raises(Unavailable, match=r"within 0\.05 s"):
            await hosts.residency.acquire(second)
        gone = asyncio.create_task(hosts.residency.acquire(second))
        await asyncio.sleep(0.01)
        assert hosts.residency.num_waiting == 1
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert hosts.residency.num_waiting == 0
        await hosts.use(first)  # it takes requests again, since nobody wants its place any more
        hosts.residency.release(first)
        assert hosts.loaded() == "a"
        await hosts.residency.stop()

    run(test())


def test_a_model_that_cannot_be_loaded_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        hosts = Hosts(2, max_loaded=2)
        first, second = hosts.models
        await hosts.residency.start()
        hosts.engines[1].can_load = False
        for _ in range(3):
            with pytest.raises(ServerFault, match="'b' is not available: no weights"):
                await hosts.residency.acquire(second)
        assert hosts.engines[1].num_starts == 1
        await hosts.use(first)
        assert hosts.residency.fatal is None
        hosts.engines[1].can_load = True
        second.retry_at = 0.0
        await hosts.use(second)
        assert hosts.loaded() == "ab"
        await hosts.residency.stop()

    run(test())


def test_a_text_side_that_cannot_be_made_is_that_models_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        hosts = Hosts(2, max_loaded=2)
        await hosts.residency.start()
        monkeypatch.setattr(hosts.models[1], "load_text", lambda metrics: 1 / 0)
        with pytest.raises(ServerFault, match="ZeroDivisionError"):
            await hosts.residency.acquire(hosts.models[1])
        assert hosts.loaded() == "a"
        await hosts.residency.stop()

    run(test())


def test_a_fault_of_our_own_ends_the_server_instead_of_letting_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        hosts = Hosts(2)
        monkeypatch.setattr(hosts.residency, "_wanted", lambda: 1 / 0)
        await hosts.residency.start()
        assert "ZeroDivisionError" in (hosts.residency.fatal or "")
        await hosts.residency.stop()

    run(test())


@pytest.mark.parametrize("count", [1, 2])
def test_only_a_server_with_one_model_ends_for_it(count: int) -> None:
    async def test() -> None:
        hosts = Hosts(count)
        hosts.engines[0].can_load = False
        await hosts.residency.start()
        assert (hosts.residency.fatal is None) == (count > 1)
        await hosts.residency.stop()

    run(test())


def test_sleep_waits_for_requests_and_the_next_one_wakes() -> None:
    async def test() -> None:
        hosts = Hosts(1)
        (model,) = hosts.models
        await hosts.residency.start()
        using = asyncio.create_task(hosts.use(model, 0.05))
        await asyncio.sleep(0)
        sleeping = asyncio.create_task(hosts.residency.sleep([model]))
        await asyncio.sleep(0)
        next_one = asyncio.create_task(hosts.use(model))
        await sleeping
        assert using.done()
        await next_one
        assert hosts.loaded() == "a"
        assert hosts.engines[0].num_starts == 2
        await hosts.residency.stop()

    run(test())


def test_waking_a_model_before_it_has_gone_keeps_it() -> None:
    async def test() -> None:
        hosts = Hosts(1)
        (model,) = hosts.models
        await hosts.residency.start()
        await hosts.residency.acquire(model)
        sleeping = asyncio.create_task(hosts.residency.sleep([model]))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(hosts.use(model))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        hosts.residency.wake(model)
        with pytest.raises(Conflict, match="'a' was woken"):
            await sleeping
        await waiting
        hosts.residency.release(model)
        assert hosts.engines[0].num_starts == 1
        await hosts.residency.stop()

    run(test())


def _workloads() -> list[Any]:
    return [*range(30), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(30, 1000))]


@pytest.mark.parametrize("seed", _workloads())
def test_random_requests(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests, departures, failures, sleep and short stays in any order: who stays is served or told, and soon."""
    rng = random.Random(seed)
    monkeypatch.setattr(residency_module, "RETRY_S", 0.002)
    outcomes: list[str] = []

    async def test() -> None:
        hosts = Hosts(
            rng.randint(1, 4),
            max_loaded=rng.randint(1, 3),
            keep_alive_s=rng.choice([None, 0.0, 0.002, math.inf]),
            load_s=rng.choice([0.0, 0.001]),
        )
        await hosts.residency.start()

        async def client(number: int) -> None:
            await asyncio.sleep(rng.random() * 0.05)
            try:
                await hosts.use(rng.choice(hosts.models), rng.choice([0.0, 0.0005, 0.004]))
                outcomes.append("served")
            except HttpError:
                outcomes.append("refused")

        async def disturb() -> None:
            for _ in range(rng.randint(0, 6)):
                await asyncio.sleep(rng.random() * 0.01)
                model, engine = rng.choice(list(zip(hosts.models, hosts.engines, strict=True)))
                rng.choice([hosts.residency.send_to_sleep, hosts.residency.wake])(model)
                if rng.random() < 0.5:
                    sleepers.append(asyncio.create_task(hosts.residency.sleep(hosts.models)))
                engine.can_load = rng.random() < 0.8
            for engine in hosts.engines:
                engine.can_load = True

        sleepers: list[asyncio.Task[None]] = []
        clients = [asyncio.create_task(client(number)) for number in range(40)]
        leaving = rng.sample(clients, 8)
        disturbing = asyncio.create_task(disturb())
        for task in leaving:
            await asyncio.sleep(rng.random() * 0.005)
            task.cancel()
        results = await asyncio.gather(*clients, disturbing, return_exceptions=True)
        wrong = [one for one in results if isinstance(one, Exception) and not isinstance(one, asyncio.CancelledError)]
        assert not wrong
        assert hosts.residency.num_waiting == 0
        slept = await asyncio.gather(*sleepers, return_exceptions=True)
        assert all(one is None or isinstance(one, Conflict) for one in slept)
        assert [model.sleepers for model in hosts.models] == [[]] * len(hosts.models)
        assert [model.num_uses for model in hosts.models] == [0] * len(hosts.models)
        for model in hosts.models:
            model.retry_at = 0.0
            await hosts.use(model)  # all can still be had
        await hosts.residency.stop()
        assert hosts.loaded() == ""

    run(test())
    assert outcomes.count("served") >= 10
