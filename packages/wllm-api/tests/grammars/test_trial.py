"""Grammars that take the compiler minutes: they are given up, and hold up nobody who comes after them."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.errors import GrammarError
from wllm_api.grammars import Constraint, GrammarChecker, trial
from wllm_api.grammars import checker as checker_module
from wllm_api.http_errors import Unavailable
from wllm_sched import Grammar

FREE = 'n: %json {"type": "integer", "multipleOf": 62615533}'
EASY = Constraint("json", {"type": "object"}, "x")


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[trial._Trial]:
    """The one that is used next, with half a second for a grammar."""
    monkeypatch.setattr(trial, "_idle", queue.SimpleQueue())
    started = trial._Trial()
    trial._idle.put(started)
    monkeypatch.setattr(trial, "TIMEOUT_S", 0.5)
    yield started
    started._process.kill()


@pytest.fixture
def checker(process: trial._Trial) -> GrammarChecker:
    return GrammarChecker(build_tokenizer().to_str())


@pytest.mark.parametrize(
    "grammar",
    [Grammar(f"start: n\n{FREE}", is_free=True), Grammar(f'start: <[151657]> n "<a>" <think>\n{FREE}')],
    ids=["free", "tokens"],
)
def test_an_endless_grammar_is_given_up(process: trial._Trial, checker: GrammarChecker, grammar: Grammar) -> None:
    """Names of tokens that only the model has do not hide the rest of it."""
    start = time.perf_counter()
    with pytest.raises(GrammarError, match="not compiled within"):
        checker.check_grammar_now(grammar)
    assert time.perf_counter() - start < 5
    assert not process._process.is_alive(), "its work has ended too"


def test_a_good_schema_does_not_wait_for_endless_ones(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> tuple[list[object], float]:
        schemas = [{"type": "integer", "multipleOf": 62_615_533 + number} for number in (0, 2)]
        endless = [asyncio.create_task(checker.check(Constraint("json", schema, "x"))) for schema in schemas]
        await asyncio.sleep(0.05)
        start = time.perf_counter()
        await checker.check(EASY)
        taken = time.perf_counter() - start
        assert not any(task.done() for task in endless)
        return await asyncio.gather(*endless, return_exceptions=True), taken

    # The good one gets a process of its own, which takes its time to start under Wine.
    timeout_s = 30.0 if sys.platform == "win32" else 6.0
    monkeypatch.setattr(trial, "TIMEOUT_S", timeout_s)
    ended, taken = asyncio.run(ask())
    assert taken < timeout_s and all(isinstance(one, GrammarError) for one in ended)


def test_a_compiler_that_dies_is_an_error_once(process: trial._Trial, checker: GrammarChecker) -> None:
    process._process.kill()
    process._process.join()
    with pytest.raises(GrammarError, match="ended on it"):
        checker.check_now(EASY)
    assert checker.check_now(EASY)


@pytest.mark.parametrize("work_s", [60.0, 0.4], ids=["no turn", "a late one"])
def test_who_waits_for_others_is_not_told_to_send_less(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch, work_s: float
) -> None:
    end = threading.Event()

    async def ask() -> list[BaseException | bool]:
        working = [asyncio.create_task(checker.in_thread(lambda: end.wait(work_s))) for _ in range(4)]
        await asyncio.sleep(0)
        waiting = asyncio.create_task(checker.in_thread(lambda: end.wait(60)))
        answers = await asyncio.gather(waiting, *working, return_exceptions=True)
        end.set()
        return answers

    monkeypatch.setattr(checker_module, "TIMEOUT_S", 0.6)
    waited, *others = asyncio.run(ask())
    assert isinstance(waited, Unavailable) and waited.headers["Retry-After"]
    assert all(isinstance(one, GrammarError) if work_s > 1 else one is False for one in others)
