"""Scheduler and allocator: microseconds of host time a decode step, at several numbers of running requests.

Needs wllm-sched only. The device is left out: results are made outside the measured time. Run
`python bench/scheduler.py`.
"""

from __future__ import annotations

import statistics
import sys
from time import perf_counter_ns

from wllm_cache import BlockPool
from wllm_sched import FixedChunks, SamplingParams, Scheduler, SchedulerConfig, StepResult, Submit

RUNNING = (1, 16, 64, 256)
BLOCK_SIZE = 16
PROMPT_TOKENS = 128
STEPS = 400
TARGETS_US = {64: 80.0}


def measure(num_running: int) -> list[float]:
    """Microseconds of plan and commit together, for each of `STEPS` decode steps of `num_running` requests."""
    max_len = PROMPT_TOKENS + STEPS + 64
    config = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=num_running * PROMPT_TOKENS,
        max_model_len=max_len,
        vocab_size=32_000,
        eos_token_ids=(2,),
    )
    pool = BlockPool(num_running * (max_len // BLOCK_SIZE + 1), BLOCK_SIZE)
    scheduler = Scheduler(config, pool, FixedChunks(num_running * PROMPT_TOKENS))
    for request_id in range(num_running):
        prompt = [3 + (request_id * 7919 + position) % 30_000 for position in range(PROMPT_TOKENS)]
        scheduler.submit(Submit(request_id, prompt, SamplingParams(max_tokens=None)))
    times = []
    for step in range(STEPS + 40):
        begin = perf_counter_ns()
        plan = scheduler.plan()
        planned = perf_counter_ns()
        if plan is None:
            raise SystemExit(f"Step {step} planned nothing.")
        count = sum(row.samples for row in plan.rows)
        result = StepResult(tokens=(100 + step,) * count, logprobs=(None,) * count)
        resumed = perf_counter_ns()
        scheduler.commit(plan, result)
        events = scheduler.take_events()
        end = perf_counter_ns()
        if step >= 40 and len(events) == num_running:
            times.append((planned - begin + end - resumed) / 1000)
    return times


def main() -> int:
    print("scheduler + allocator, decode steps, plan and commit")
    print(f"{'running':>8} {'median us':>10} {'p95 us':>10} {'us/request':>11} {'target us':>10}")
    for num_running in RUNNING:
        times = sorted(measure(num_running))
        median = statistics.median(times)
        target = TARGETS_US.get(num_running)
        print(
            f"{num_running:>8} {median:>10.1f} {times[len(times) * 95 // 100]:>10.1f} {median / num_running:>11.2f} "
            f"{'' if target is None else f'<= {target:.0f}':>10}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
