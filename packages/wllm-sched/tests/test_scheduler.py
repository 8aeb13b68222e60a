"""`Scheduler`: what is planned, in which order, and how requests end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from wllm_cache import BlockPool
from wllm_sched import (
    Abort,
    FixedChunks,
    RequestRefused,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
    Submit,
    TokenEvent,
)
from wllm_sched.testing import FakeEngine, FakeModel, expected_sample

CONFIG = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, vocab_size=1000)
MODEL = FakeModel(1000)
FOUR = SamplingParams(max_tokens=4, temperature=0)


def answer(prompt: Sequence[int], params: SamplingParams, index: int = 0, longest: int = 64) -> list[int]:
    return list(expected_sample(MODEL, prompt, params, index, longest).token_ids)


def tokens(events: Sequence[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def constant(plan: StepPlan, token: int = 5) -> StepResult:
    draws = sum(row.samples for row in plan.rows)
    return StepResult((token,) * draws, (None,) * draws)


def run_step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan()
    assert plan is not None
    scheduler.commit(plan, constant(plan))
    return plan


def shape(plan: StepPlan) -> list[tuple[int, ...]]:
    return [tuple(row) for row in plan.rows]


def test_decode_rows_come_first_then_chunks_in_arrival_order() -> None:
    scheduler = Scheduler(CONFIG, BlockPool(64, 4), FixedChunks(10))
    scheduler.submit(Submit(0, [1] * 5, FOUR))
    run_step(scheduler)
    for request_id in (1, 2):
        scheduler.submit(Submit(request_id, [2 + request_id] * 8, FOUR))
    plan = run_step(scheduler)
    assert shape(plan) == [(0, 5, 1, 1), (1, 0, 8, 1), (2, 0, 2, 0)]
    assert plan.num_decode_rows == 1
    plan = run_step(scheduler)
    assert shape(plan) == [(0, 6, 1, 1), (1, 8, 1, 1), (2, 2, 6, 1)]
    assert plan.num_decode_rows == 2


def test_a_step_never_exceeds_the_token_budget() -> None:
    config = replace(CONFIG, max_num_batched_tokens=7)
    engine = FakeEngine(config, MODEL, num_blocks=200)
    for request_id in range(12):
        engine.ask(request_id, [request_id] * 20, FOUR)
    engine.serve()
    assert engine.device.largest_step == 7


def test_no_more_run_at_once_than_the_budget_has_tokens() -> None:
    engine = FakeEngine(replace(CONFIG, max_num_batched_tokens=2), MODEL)
    for request_id in range(5):
        engine.ask(request_id, [request_id], FOUR)
    running = 0
    while engine.has_work():
        engine.step()
        running = max(running, engine.stats().num_running)
    assert running == 2


def test_priority_goes_before_arrival() -> None:
    scheduler = Scheduler(replace(CONFIG, max_num_seqs=1), BlockPool(64, 4))
    for request_id, priority in enumerate((0, 5, -5)):
        scheduler.submit(Submit(request_id, [1 + request_id] * 3, SamplingParams(max_tokens=1, priority=priority)))
    order = [run_step(scheduler).new_slots[0].token_ids[0] - 1 for _ in range(3)]
    assert order == [2, 0, 1]


def test_a_big_prompt_is_not_overtaken() -> None:
    engine = FakeEngine(CONFIG, MODEL, num_blocks=16)
    long = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    engine.ask(0, [1] * 20, long)
    engine.step()
    engine.ask(1, [2] * 50, FOUR)
    for request_id in range(2, 10):
        engine.ask(request_id, [3, request_id], FOUR)
    first_seen: list[int] = []
    while engine.has_work():
        first_seen += [event.request_id for event in engine.step() if event.request_id not in first_seen]
    assert first_seen[:2] == [0, 1]


def test_admission_leaves_a_block_for_every_running_request() -> None:
    scheduler = Scheduler(CONFIG, BlockPool(5, 4))
    scheduler.submit(Submit(0, [1] * 8, FOUR))
    scheduler.submit(Submit(1, [2] * 12, FOUR))
    assert len(run_step(scheduler).rows) == 1
    assert scheduler.stats().num_waiting == 1


def test_the_known_length_limit_wastes_no_row() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.ask(0, [1, 2, 3], FOUR)
    engine.serve()
    assert engine.stats().steps_total == 4


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_end_token_wastes_no_more_than_the_depth(depth: int) -> None:
    model = FakeModel(1000, eos_token_id=7, eos_every=1)
    engine = FakeEngine(replace(CONFIG, eos_token_ids=(7,)), model, depth=depth)
    engine.ask(0, [1, 2, 3], SamplingParams(max_tokens=20))
    (events,) = engine.serve().values()
    assert tokens(events) == [7]
    assert (events[-1].finish_reason, events[-1].stop_token_id) == ("stop", 7)
    assert engine.stats().steps_total == depth


def test_any_of_several_end_tokens_ends() -> None:
    model = FakeModel(1000, eos_token_id=17, eos_every=1)
    engine = FakeEngine(replace(CONFIG, eos_token_ids=(7, 17)), model)
    engine.ask(0, [1], SamplingParams(max_tokens=20))
    (events,) = engine.serve().values()
    assert events[-1].stop_token_id == 17


def test_ignore_eos_goes_on_but_stop_ids_still_stop() -> None:
    model = FakeModel(1000, eos_token_id=7, eos_every=1)
    engine = FakeEngine(replace(CONFIG, eos_token_ids=(7,)), model)
    engine.ask(0, [1], SamplingParams(max_tokens=5, ignore_eos=True))
    engine.ask(1, [1], SamplingParams(max_tokens=5, ignore_eos=True, stop_token_ids=[7]))
    events = engine.serve()
    assert tokens(events[0, 0]) == [7] * 5 and events[0, 0][-1].finish_reason == "length"
    assert tokens(events[1, 0]) == [7] and events[1, 0][-1].finish_reason == "stop"


def test_min_tokens_holds_every_stop_back() -> None:
    model = FakeModel(1000, eos_token_id=7, eos_every=1)
    engine = FakeEngine(replace(CONFIG, eos_token_ids=(7,)), model)
    engine.ask(0, [1], SamplingParams(max_tokens=9, min_tokens=3, stop_token_ids=[7]))
    (events,) = engine.serve().values()
    assert len(tokens(events)) == 3 and events[-1].finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_the_end_of_the_context_is_length(max_tokens: int | None) -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.ask(0, [1] * 60, SamplingParams(max_tokens=max_tokens, temperature=0))
    (events,) = engine.serve().values()
    assert len(tokens(events)) == 4 and events[-1].finish_reason == "length"


def test_the_end_of_the_pool_is_length_for_a_request_alone() -> None:
    engine = FakeEngine(CONFIG, MODEL, num_blocks=3)
    engine.ask(0, [1] * 10, SamplingParams(max_tokens=None, temperature=0))
    (events,) = engine.serve().values()
    assert len(tokens(events)) == 3 and events[-1].finish_reason == "length"


def test_max_tokens_zero_only_scores_the_prompt() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    engine.ask(0, [1, 2, 3, 4, 5], params)
    ((event,),) = engine.serve().values()
    assert (event.token_ids, event.finish_reason) == ((), "length")
    assert event.prompt_logprobs == expected_sample(MODEL, [1, 2, 3, 4, 5], params, 0, 64).prompt_logprobs
    assert engine.stats().generation_tokens_total == 0


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_prompt_logprobs_are_whole_and_come_first(length: int) -> None:
    engine = FakeEngine(replace(CONFIG, max_num_batched_tokens=3), MODEL)
    prompt, params = list(range(1, length + 1)), SamplingParams(max_tokens=2, prompt_logprobs=0, temperature=0)
    expected = expected_sample(MODEL, prompt, params, 0, 64).prompt_logprobs
    for request_id in (0, 1):  # the second one finds the prompt in the cache
        engine.ask(request_id, prompt, params)
        events = engine.serve()[request_id, 0]
        assert events[0].prompt_logprobs == expected
        assert all(event.prompt_logprobs is None for event in events[1:])
        assert events[0].num_cached_tokens == 0


def test_a_failing_request_fails_alone() -> None:
    model = FakeModel(1000, error_every=20)
    config = replace(CONFIG, max_num_seqs=16)
    engine = FakeEngine(config, model, num_blocks=400)
    params = SamplingParams(max_tokens=6, temperature=0)
    for request_id in range(16):
        engine.ask(request_id, [request_id] * 5, params)
    events = engine.serve()
    reasons = {key: expected_sample(model, [key[0]] * 5, params, 0, 64).finish_reason for key in events}
    assert {key: answer[-1].finish_reason for key, answer in events.items()} == reasons
    assert set(reasons.values()) == {"error", "length"}
    assert all("not finite" in (answer[-1].error or "not finite") for answer in events.values())


def test_the_code_of_a_failure_reaches_every_sample_of_its_request() -> None:
    scheduler = Scheduler(CONFIG, BlockPool(40, 4))
    scheduler.submit(Submit(0, [1, 2, 3], SamplingParams(n=2)))
    scheduler.submit(Submit(1, [4, 5, 6], SamplingParams()))
    plan = scheduler.plan()
    assert plan is not None and [row.slot for row in plan.rows] == [0, 1]
    scheduler.commit(
        plan, StepResult(tokens=(-1, -1), logprobs=(None, None), errors={0: "a", 1: "b"}, error_codes={0: "own"})
    )
    told = {(e.request_id, e.index): (e.error, e.error_code) for e in scheduler.take_events()}
    assert told == {(0, 0): ("a", "own"), (0, 1): ("a", "own"), (1, 0): ("b", None)}


def test_the_kv_of_a_failed_request_is_not_shared() -> None:
    engine = FakeEngine(CONFIG, FakeModel(1000, error_every=1))
    engine.ask(0, [1] * 9, FOUR)
    assert engine.serve()[0, 0][-1].finish_reason == "error"
    engine.ask(1, [1] * 9, FOUR)
    assert engine.serve()[1, 0][-1].num_cached_tokens == 0


def test_an_abort_ends_a_waiting_request() -> None:
    engine = FakeEngine(replace(CONFIG, max_num_seqs=1), MODEL)
    engine.ask(0, [1], FOUR)
    engine.ask(1, [2], FOUR)
    engine.step()
    engine.abort(Abort(1))
    events = engine.serve()
    assert [event.finish_reason for event in events[1, 0]] == ["abort"]
    assert tokens(events[0, 0]) == answer([1], FOUR)
    assert engine.stats().aborts_in_flight_total == 0


def test_an_abort_in_flight_frees_slot_and_blocks_at_once() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.ask(0, [1] * 9, SamplingParams(max_tokens=50))
    for _ in range(3):
        engine.step()
    engine.abort(Abort(0))
    stats = engine.stats()
    assert (stats.num_running, stats.num_free_blocks, stats.aborts_in_flight_total) == (0, 64, 1)
    assert [event.finish_reason for event in engine.serve()[0, 0]] == ["abort"]


def test_an_abort_of_one_sample_leaves_the_others() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    params = SamplingParams(n=3, max_tokens=6, seed=1)
    engine.ask(0, [1] * 9, params)
    for _ in range(3):
        engine.step()
    engine.abort(Abort(0, 1))
    events = engine.serve()
    assert events[0, 1][-1].finish_reason == "abort"
    assert events[0, 2][-1].finish_reason == "length"


def test_unknown_and_repeated_aborts_are_ignored() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.abort(Abort(9))
    engine.ask(0, [1], FOUR)
    engine.step()
    engine.abort(Abort(0, 7))
    engine.abort(Abort(0))
    engine.abort(Abort(0))
    events = engine.serve()
    assert [event.finish_reason for event in events[0, 0]] == ["abort"]
    engine.abort(Abort(0))
    assert not engine.has_work()


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.ask(0, [1], FOUR)
    with pytest.raises(RequestRefused, match="Request id 0"):
        engine.ask(0, [1], FOUR)
    engine.serve()
    engine.ask(0, [1], FOUR)
    assert tokens(engine.serve()[0, 0]) == answer([1], FOUR)


def test_commits_must_come_in_order() -> None:
    scheduler = Scheduler(CONFIG, BlockPool(64, 4))
    scheduler.submit(Submit(0, [1], FOUR))
    scheduler.plan()
    second = scheduler.plan()
    assert second is not None
    with pytest.raises(AssertionError, match="Commit order"):
        scheduler.commit(second, constant(second))


def test_a_result_of_the_wrong_size_is_noticed() -> None:
    scheduler = Scheduler(CONFIG, BlockPool(64, 4))
    scheduler.submit(Submit(0, [1], FOUR))
    plan = scheduler.plan()
    assert plan is not None
    with pytest.raises(AssertionError, match="I6"):
        scheduler.commit(plan, StepResult((), ()))


def test_the_counters_are_true() -> None:
    engine = FakeEngine(replace(CONFIG, max_num_batched_tokens=8), MODEL)
    for request_id in range(3):
        engine.ask(request_id, [request_id] * 12, FOUR)
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (1, 2, 61)
    engine.serve()
    stats = engine.stats()
    assert stats.prompt_tokens_total == 36
    assert stats.generation_tokens_total == 12
    assert stats.prefix_cache_queries_total == 36 and stats.prefix_cache_hits_total == 0
    assert stats.prefill_chunks_total == 7  # 8; 4 + 4; 7; 1 + 6; 6
    assert stats.max_in_flight_seen == 2
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, 64)
