"""Counts of the scheduler's and the allocator's work in a step. Needs wllm-sched only."""

from __future__ import annotations

from functools import partial

from _calls import count_calls

from wllm_cache import BlockPool
from wllm_sched import FixedChunks, SamplingParams, Scheduler, SchedulerConfig, StepResult, Submit

RUNNING = (1, 16, 64)
PROMPT_TOKENS = 128
BLOCK_SIZE = 16
PACKAGES = ("wllm_sched", "wllm_cache")


def scheduler_counts() -> dict[str, dict[str, int]]:
    """Python calls by case: the first step of new requests, and the worst decode step of a block's worth of them."""
    counts = {}
    for running in RUNNING:
        step = partial(_step, _scheduler(running))
        first = count_calls(step, PACKAGES)
        worst = max(count_calls(step, PACKAGES) for _ in range(BLOCK_SIZE))
        counts[f"scheduler, {running} running"] = {"admission": first, "decode": worst}
    return counts


def _scheduler(running: int) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=running,
        max_num_batched_tokens=running * PROMPT_TOKENS,
        max_model_len=512,
        vocab_size=32_000,
        eos_token_ids=(2,),
    )
    scheduler = Scheduler(config, BlockPool(running * 40, BLOCK_SIZE), FixedChunks(running * PROMPT_TOKENS))
    for request_id in range(running):
        prompt = [3 + (request_id * 7919 + position) % 30_000 for position in range(PROMPT_TOKENS)]
        scheduler.submit(Submit(request_id, prompt, SamplingParams(max_tokens=None)))
    return scheduler


def _step(scheduler: Scheduler) -> None:
    plan = scheduler.plan()
    assert plan is not None, "every request still runs"
    count = sum(row.samples for row in plan.rows)
    scheduler.commit(plan, StepResult(tokens=(100,) * count, logprobs=(None,) * count))
    scheduler.take_events()
