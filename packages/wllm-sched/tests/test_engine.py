"""`EngineLoop`: depth, order, draining, failure, closing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from wllm_cache import BlockPool, BlockSwap
from wllm_sched import (
    Chunk,
    EngineClosed,
    EngineLoop,
    FixedChunks,
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    StepResult,
    Submit,
)
from wllm_sched.testing import FakeEngine, FakeModel

CONFIG = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, vocab_size=1000)
PARAMS = SamplingParams(max_tokens=6, temperature=0)


class Recorder:
    """A runner that notes what happens, and fails on demand."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.num_swaps = 0
        self.fail_launch: BaseException | None = None
        self.fail_wait: BaseException | None = None

    def launch(self, plan: StepPlan) -> Recorder.Handle:
        if self.fail_launch is not None:
            raise self.fail_launch
        self.log.append(f"launch {plan.step}")
        return Recorder.Handle(self, plan)

    def swap(self, swaps: Sequence[BlockSwap]) -> int:
        if self.fail_launch is not None:
            raise self.fail_launch
        self.log.append(f"swap {len(swaps)}")
        self.num_swaps += len(swaps)
        return self.num_swaps

    class Handle:
        def __init__(self, owner: Recorder, plan: StepPlan) -> None:
            self.owner, self.plan = owner, plan

        def wait(self) -> StepResult:
            if self.owner.fail_wait is not None:
                failure, self.owner.fail_wait = self.owner.fail_wait, None
                raise failure
            self.owner.log.append(f"wait {self.plan.step}")
            draws = sum(row.samples for row in self.plan.rows)
            return StepResult((5,) * draws, (None,) * draws)


def recorded(depth: int) -> tuple[EngineLoop, Recorder]:
    runner = Recorder()
    loop = EngineLoop(Scheduler(CONFIG, BlockPool(64, 4)), runner, depth=depth)
    loop.submit(Submit(0, [1, 2, 3], PARAMS))
    return loop, runner


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_next_step_is_launched_before_the_oldest_is_waited_for(depth: int) -> None:
    loop, runner = recorded(depth)
    while loop.has_work():
        loop.step()
    launches = [f"launch {step}" for step in range(6)]
    waits = [f"wait {step}" for step in range(6)]
    expected = launches[: depth - 1]
    for step in range(6):
        expected += launches[step + depth - 1 : step + depth] + waits[step : step + 1]
    assert runner.log == expected
    assert loop.stats().max_in_flight_seen == depth


def test_swaps_of_the_last_step_are_settled_before_the_engine_rests() -> None:
    runner = Recorder()
    loop = EngineLoop(Scheduler(CONFIG, BlockPool(64, 4, num_host_blocks=64), FixedChunks(64)), runner)
    loop.submit(Submit(0, list(range(40)), SamplingParams(max_tokens=1)))
    while loop.has_work():
        loop.step()
    assert runner.log == ["launch 0", "wait 0", "swap 8"]
    assert loop.stats().num_free_blocks == 64 and loop.stats().num_used_host_blocks == 8


def test_a_swap_that_fails_ends_the_engine() -> None:
    runner = Recorder()
    loop = EngineLoop(Scheduler(CONFIG, BlockPool(64, 4, num_host_blocks=64), FixedChunks(64)), runner)
    loop.submit(Submit(0, list(range(40)), SamplingParams(max_tokens=1)))
    while not loop.step():
        pass
    runner.fail_launch = RuntimeError("no pinned memory")
    with pytest.raises(RuntimeError, match="no pinned memory"):
        loop.step()
    with pytest.raises(EngineClosed):
        loop.step()


def test_depth_must_be_positive() -> None:
    with pytest.raises(ValueError, match="depth is 0"):
        EngineLoop(Scheduler(CONFIG, BlockPool(64, 4)), Recorder(), depth=0)


def test_a_step_without_work_does_nothing() -> None:
    engine = FakeEngine(CONFIG, FakeModel(1000))
    assert not engine.has_work()
    assert engine.step() == []
    assert engine.stats().steps_total == 0


def test_drain_commits_everything_and_keeps_the_events() -> None:
    loop, runner = recorded(2)
    assert loop.step() == []
    loop.drain()
    assert runner.log == ["launch 0", "wait 0"]
    assert [event.token_ids for event in loop.step()] == [(5,)]


def test_reset_waits_for_what_is_in_flight() -> None:
    loop, runner = recorded(2)
    loop.step()
    loop.reset_prefix_cache()
    assert runner.log[-1] == "wait 0"


def test_a_reset_in_flight_breaks_i9() -> None:
    loop, _ = recorded(2)
    loop.step()
    with pytest.raises(AssertionError, match="I9"):
        loop.scheduler.reset_prefix_cache()


def test_close_finishes_what_is_in_flight_and_takes_no_more() -> None:
    loop, runner = recorded(2)
    loop.step()
    loop.close()
    loop.close()
    assert runner.log == ["launch 0", "wait 0"]
    with pytest.raises(EngineClosed, match="was closed"):
        loop.submit(Submit(1, [1], PARAMS))


def test_a_failed_launch_goes_to_the_caller() -> None:
    loop, runner = recorded(2)
    loop.step()
    runner.fail_launch = RuntimeError("device lost")
    with pytest.raises(RuntimeError, match="device lost"):
        loop.step()
    with pytest.raises(EngineClosed, match="failed"):
        loop.step()
    loop.close()


def test_a_failed_wait_goes_to_the_caller() -> None:
    loop, runner = recorded(1)
    runner.fail_wait = RuntimeError("device lost")
    with pytest.raises(RuntimeError, match="device lost"):
        loop.step()
    with pytest.raises(EngineClosed, match="failed"):
        loop.submit(Submit(1, [1], PARAMS))
    loop.close()


def test_an_interrupted_wait_can_be_repeated() -> None:
    loop, runner = recorded(2)
    loop.step()
    runner.fail_wait = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    events = []
    while loop.has_work():
        events += loop.step()
    assert sum(len(event.token_ids) for event in events) == 6


def test_the_chunk_policy_hears_of_every_step() -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[tuple[list[Chunk], int]] = []

        def allowance(self, start: int, planned: Sequence[Chunk], num_decode_rows: int) -> int:
            return 64

        def observe(self, chunks: Sequence[Chunk], num_decode_rows: int, elapsed_ms: float) -> None:
            assert elapsed_ms >= 0.0
            self.heard.append((list(chunks), num_decode_rows))

    listener = Listener()
    engine = FakeEngine(CONFIG, FakeModel(1000), chunks=listener)
    engine.ask(0, [1, 2, 3], SamplingParams(max_tokens=3))
    engine.serve()
    assert listener.heard == [([Chunk(0, 3)], 0), ([], 1), ([], 1)]


def test_the_policy_limits_prefill_beside_decodes_only() -> None:
    engine = FakeEngine(CONFIG, FakeModel(1000), chunks=FixedChunks(2))
    engine.ask(0, [1] * 10, SamplingParams(max_tokens=30))
    engine.step()
    assert engine.device.largest_step == 10
    engine.ask(1, [2] * 10, SamplingParams(max_tokens=2))
    engine.serve()
    assert engine.stats().prefill_chunks_total == 6


def test_start_times_come_once_a_sample_and_tell_waiting_from_prefill() -> None:
    config = replace(CONFIG, max_num_seqs=1)
    loop = EngineLoop(Scheduler(config, BlockPool(64, 4)), Recorder(), depth=1)
    loop.submit(Submit(0, [1, 2, 3], PARAMS))
    loop.submit(Submit(1, [1, 2, 3], PARAMS))
    events = []
    while loop.has_work():
        events += loop.step()
    times = [(event.request_id, event.start_times) for event in events if event.start_times is not None]
    assert [request_id for request_id, _ in times] == [0, 1]
    first, second = times[0][1], times[1][1]
    assert second.queue_s > first.queue_s >= 0
    assert first.prefill_s > 0 and second.prefill_s > 0
