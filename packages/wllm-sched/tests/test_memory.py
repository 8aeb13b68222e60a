"""What ended requests leave behind: nothing, and without the help of the garbage collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from wllm_cache import BlockPool, BlockTable
from wllm_sched import Abort, SamplingParams, Scheduler, SchedulerConfig, Submit
from wllm_sched.request import Request, Sample
from wllm_sched.testing import CheckedScheduler, FakeEngine, FakeModel, Totals, random_workload, run_workload
from wllm_sched.testing.grammar import FakeMatcher


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(*types: type) -> Counter[str]:
    """The objects of these types, by name."""
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in types)


def test_however_requests_end_nothing_of_them_stays() -> None:
    schedulers: list[Scheduler] = []

    class Kept(CheckedScheduler):
        """Lives on, as that of a server does."""

        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            schedulers.append(self)

    totals = Totals()
    for seed in range(60):
        totals.add(run_workload(random_workload(Random(seed)), Kept))
    assert len(schedulers) == 60
    assert totals.samples > 1_000 and totals.errors and totals.aborts_in_flight and totals.preemptions
    assert totals.refused and totals.constrained and totals.block_copies and totals.host_loads
    # Who was aborted while it waited is dropped when the line is next looked at.
    assert all(scheduler._waiting.head() is None for scheduler in schedulers)
    assert alive(Request, Sample, BlockTable, FakeMatcher) == {}


def test_samples_that_are_aborted_behind_a_waiting_head_do_not_add_up() -> None:
    # Priorities let the head of the line be overtaken for ever; here it waits for the only slot.
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8, max_model_len=256, vocab_size=10)
    engine = FakeEngine(config, FakeModel(10))
    for request_id in (0, 1):
        engine.submit(Submit(request_id, [1], SamplingParams(max_tokens=200)))
    engine.step()
    for request_id in range(2, 2_000):
        engine.submit(Submit(request_id, [1, 2, 3], SamplingParams(n=2)))
        engine.abort(Abort(request_id))
        assert len(engine.scheduler._waiting._heap) <= 40
    ends = Counter(event.finish_reason for event in engine.step())
    assert ends["abort"] == 2 * 1_998
    while engine.has_work():
        engine.step()


def test_the_line_keeps_its_order_when_it_is_cleared() -> None:
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=8, max_model_len=64, vocab_size=10), BlockPool(64, 4)
    )
    rng = Random(3)
    kept = []
    for request_id in range(300):
        priority = rng.randrange(5)
        scheduler.submit(Submit(request_id, [1, 2], SamplingParams(priority=priority)))
        if rng.random() < 0.7:
            scheduler.abort(Abort(request_id))
        else:
            kept.append((priority, request_id))
    line, order = scheduler._waiting, []
    while (head := line.head()) is not None:
        order.append((head.request.params.priority, head.request.request_id))
        line.pop()
    assert order == sorted(kept) and len(order) > 50
