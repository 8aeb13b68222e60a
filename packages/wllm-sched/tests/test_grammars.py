"""Answers under a grammar: each draw has the mask that follows from the tokens before it, whatever runs beside."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from wllm_sched import Abort, Grammar, InvalidParameter, RequestRefused, SamplingParams, Scheduler, SchedulerConfig
from wllm_sched.request import Sample
from wllm_sched.testing import CheckedScheduler, FakeEngine, FakeModel, random_workload, run_workload
from wllm_sched.testing.grammar import FakeMatcher

Plant = Callable[[pytest.MonkeyPatch], type[Scheduler]]
CONFIG = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, vocab_size=40)


def engine(lag: int = 0, depth: int = 2) -> FakeEngine:
    return FakeEngine(CONFIG, FakeModel(40), grammar_lag=lag, depth=depth)


def ask(loop: FakeEngine, request_id: int, grammar: str | None, max_tokens: int = 20) -> None:
    rule = None if grammar is None else Grammar(grammar)
    loop.ask(request_id, [1, 2, 3, request_id], SamplingParams(max_tokens=max_tokens, temperature=0, grammar=rule))


def draw_before_the_token_is_known(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    patch.setattr(Sample, "awaits_token", False)
    return CheckedScheduler


def siblings_share_a_matcher(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    patch.setattr(FakeMatcher, "copy", lambda self: self)
    return CheckedScheduler


def preemption_restarts_the_grammar(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(CheckedScheduler):
        def _preempt(self, sample: Sample) -> None:
            super()._preempt(sample)
            if isinstance(sample.matcher, FakeMatcher):
                sample.matcher.path, sample.matcher._allowed = (), []

    return Faulty


@pytest.mark.parametrize(
    "plant",
    [draw_before_the_token_is_known, siblings_share_a_matcher, preemption_restarts_the_grammar],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_noticed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler_type = plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        for seed in range(80):
            run_workload(random_workload(Random(seed)), scheduler_type)


def test_a_grammar_ends_its_answer() -> None:
    loop = engine()
    ask(loop, 0, "3 7")
    (*_, last) = events = loop.serve()[0, 0]
    assert len(events) == 7
    assert last.finish_reason == "stop" and last.stop_token_id is None


def test_rows_without_a_grammar_stay_two_deep_beside_one() -> None:
    loop = engine()
    ask(loop, 0, "3 20")
    ask(loop, 1, None)
    answers = loop.serve()
    assert len(answers[0, 0]) == len(answers[1, 0]) == 20
    # The free row is in every step, the other in every second one: its last half runs alone.
    assert loop.stats().max_in_flight_seen == 2
    assert loop.stats().steps_total == 30


def test_a_slow_grammar_delays_no_one() -> None:
    loop = engine(lag=30)
    ask(loop, 0, "3 5")
    ask(loop, 1, None, max_tokens=5)
    order = [event.request_id for _ in range(100) if loop.has_work() for event in loop.step()]
    assert order == [1] * 5 + [0] * 5


def test_a_bad_grammar_ends_its_request_only() -> None:
    loop = engine(lag=2)
    for request_id, grammar in enumerate(["bad", "1 4 fails", None]):
        ask(loop, request_id, grammar, max_tokens=9)
    answers = loop.serve()
    assert [event.finish_reason for event in answers[0, 0]] == ["error"]
    assert answers[0, 0][0].error_code == answers[1, 0][-1].error_code == "grammar_failed"
    assert len(answers[1, 0]) == 4
    assert answers[2, 0][-1].finish_reason == "length"


@pytest.mark.parametrize("index", [None, 0, 1])
def test_an_abort_while_the_grammar_is_compiled(index: int | None) -> None:
    loop = engine(lag=10)
    loop.ask(0, [1, 2, 3], SamplingParams(n=3, max_tokens=9, seed=1, grammar=Grammar("2 4")))
    loop.step()
    loop.abort(Abort(0, index))
    answers = loop.serve()
    aborted = {0, 1, 2} if index is None else {index}
    for sample in range(3):
        assert answers[0, sample][-1].finish_reason == ("abort" if sample in aborted else "stop")


def test_who_ends_while_the_grammar_is_compiled_is_forgotten_at_once() -> None:
    loop = engine(lag=10)
    ask(loop, 0, "2 4")
    loop.step()
    loop.abort(Abort(0))
    assert loop.step()[0].finish_reason == "abort"
    assert not loop.has_work() and not loop.scheduler._compiling.entries


def test_an_engine_without_a_tokenizer_refuses() -> None:
    loop = engine()
    scheduler = Scheduler(CONFIG, loop.pool)
    loop.scheduler = scheduler
    with pytest.raises(RequestRefused, match="without a tokenizer"):
        ask(loop, 0, "1 2")
    assert not scheduler.has_work


def test_a_grammar_has_its_own_type() -> None:
    with pytest.raises(InvalidParameter, match="must be a Grammar"):
        SamplingParams(grammar="start: /a/")  # type: ignore[arg-type]
