"""Prefixes on the host: who waits for a load, who does not, and what a plan tells the runner."""

from __future__ import annotations

from wllm_sched import Abort, SamplingParams, SchedulerConfig, StepPlan, TokenEvent
from wllm_sched.testing import FakeEngine, FakeModel

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64, vocab_size=1000)
PROMPT = list(range(100, 124))  # six blocks of four
GREEDY = SamplingParams(temperature=0, max_tokens=1)


class Engine(FakeEngine):
    """Sixteen device blocks, many on the host; keeps the plans."""

    def __init__(self, swap_lag: int, depth: int = 2) -> None:
        super().__init__(
            CONFIG, FakeModel(1000), num_blocks=16, block_size=4, num_host_blocks=64, swap_lag=swap_lag, depth=depth
        )
        self.plans: list[StepPlan] = []

    def _launch(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        super()._launch(plan)

    def evict(self) -> None:
        """`PROMPT` is served and saved, and then others take every block of the device."""
        others = [list(range(first, first + 32)) for first in (200, 300, 400)]
        for request_id, prompt in enumerate([PROMPT, *others], start=1000):
            self.ask(request_id, prompt, GREEDY)
            self.serve()
        assert self.stats().host_saves_total >= 6 and self.stats().host_loads_total == 0
        self.plans.clear()


def finished(events: list[TokenEvent]) -> list[int]:
    return [event.request_id for event in events if event.finish_reason]


def test_with_nothing_else_to_do_the_device_waits() -> None:
    engine = Engine(swap_lag=50)
    engine.evict()
    engine.ask(0, PROMPT, GREEDY)
    (events,) = engine.serve().values()
    assert events[0].num_cached_tokens == 20
    (plan,) = engine.plans
    loads = [swap for swap in plan.swaps if not swap.to_host]
    assert len(loads) == 5 and plan.rows[0].start == 20
    assert plan.swaps_needed >= 5


def test_others_go_on_while_a_prefix_is_loaded() -> None:
    engine = Engine(swap_lag=6)
    engine.evict()
    engine.ask(1, [1, 2, 3], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    engine.step()
    engine.ask(0, PROMPT, GREEDY)
    order: list[int] = []
    while engine.has_work():
        order += finished(engine.step())
    assert order == [0, 1]
    issued = next(plan.step for plan in engine.plans if any(not swap.to_host for swap in plan.swaps))
    reader = next(plan for plan in engine.plans if any(row.start == 20 and row.count == 4 for row in plan.rows))
    assert reader.step >= issued + 6
    # Every step between had the other's row, and none waited.
    assert all(len(plan.rows) == 1 and not plan.swaps_needed for plan in engine.plans[: reader.step - issued])
    assert engine.stats().num_free_blocks == 16


def test_a_slot_is_told_of_with_its_first_rows() -> None:
    engine = Engine(swap_lag=3)
    engine.evict()
    engine.ask(1, [1, 2, 3], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    engine.step()
    engine.ask(0, PROMPT, GREEDY)
    engine.serve()
    for plan in engine.plans:
        assert {entry.slot for entry in plan.new_slots} <= {row.slot for row in plan.rows}


def test_an_abort_during_a_load_leaves_its_blocks_alone_until_it_is_done() -> None:
    engine = Engine(swap_lag=4)
    engine.evict()
    engine.ask(1, [1, 2, 3], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    engine.step()
    engine.ask(0, PROMPT, GREEDY)
    engine.step()
    under_way = engine.scheduler.num_swaps_under_way
    assert under_way >= 5
    engine.abort(Abort(0))
    assert engine.scheduler.num_swaps_under_way == under_way
    engine.serve()
    assert engine.stats().num_free_blocks == 16
    # What was loaded is in the prefix cache of the device now.
    engine.ask(2, PROMPT, GREEDY)
    (events,) = engine.serve().values()
    assert events[0].num_cached_tokens == 20 and engine.stats().host_loads_total == 5


def test_requests_that_begin_alike_share_one_load() -> None:
    engine = Engine(swap_lag=5)
    engine.evict()
    for request_id in (0, 1):
        engine.ask(request_id, [*PROMPT[:20], request_id, 7], GREEDY)
    answers = engine.serve()
    assert [events[0].num_cached_tokens for events in answers.values()] == [20, 20]
    assert engine.stats().host_loads_total == 5


def test_a_reset_forgets_the_host_too() -> None:
    engine = Engine(swap_lag=5)
    engine.evict()
    engine.reset_prefix_cache()
    assert engine.stats().num_used_host_blocks == 0
    engine.ask(0, PROMPT, GREEDY)
    (events,) = engine.serve().values()
    assert events[0].num_cached_tokens == 0


def test_prompt_scores_take_nothing_from_the_host() -> None:
    engine = Engine(swap_lag=0)
    engine.evict()
    engine.ask(0, PROMPT, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
    (events,) = engine.serve().values()
    assert events[0].num_cached_tokens == 0 and engine.stats().host_loads_total == 0
