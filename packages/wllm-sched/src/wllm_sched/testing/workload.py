"""Random workloads, and a run of one that compares every answer with the serial reference.

A workload is plain data made from a `random.Random`, so a failing one is made again from its seed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields, replace
from random import Random

from wllm_sched.chunking import FixedChunks
from wllm_sched.config import SchedulerConfig
from wllm_sched.engine import EngineLoop
from wllm_sched.errors import RequestRefused
from wllm_sched.grammar import Grammar
from wllm_sched.messages import Abort, Submit
from wllm_sched.sampling import SamplingParams
from wllm_sched.scheduler import Scheduler
from wllm_sched.testing.answers import Answers
from wllm_sched.testing.checked import CheckedScheduler
from wllm_sched.testing.engine import FakeEngine
from wllm_sched.testing.model import FakeModel
from wllm_sched.testing.reference import expected_sample

MAX_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests and aborts, each with the step before which it comes, and the engine that they come to.

    `cuts` abort a sample in the middle of its answer: (step, which of them as a fraction of those there are).
    """

    config: SchedulerConfig
    model: FakeModel
    num_blocks: int
    block_size: int
    chunk_tokens: int
    depth: int
    submits: tuple[tuple[int, Submit], ...]
    aborts: tuple[tuple[int, Abort], ...]
    cuts: tuple[tuple[int, float], ...]
    num_host_blocks: int = 0
    swap_lag: int = 0
    grammar_lag: int = 0


@dataclass(slots=True)
class Totals:
    """What workloads made happen; a test asserts that it was enough."""

    workloads: int = 0
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    chunks: int = 0
    preemptions: int = 0
    prefix_block_hits: int = 0
    aborts_in_flight: int = 0
    block_copies: int = 0
    host_saves: int = 0
    host_loads: int = 0
    refused: int = 0
    errors: int = 0
    constrained: int = 0
    deepest: int = 0

    def add(self, other: Totals) -> None:
        """Count `other` in."""
        for entry in fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            setattr(self, entry.name, max(mine, theirs) if entry.name == "deepest" else mine + theirs)


@dataclass(slots=True)
class _Prompts:
    """Prompts that share beginnings, as chats and templates do."""

    rng: Random
    vocab_size: int
    max_len: int
    bases: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.bases.append([self.rng.randrange(self.vocab_size) for _ in range(self.max_len)])

    def make(self) -> list[int]:
        """One prompt, sometimes too long for the context."""
        length = self.rng.randint(1, self.max_len)
        shared = self.rng.choice([0, length // 2, length, self.max_len // 2])
        return (self.rng.choice(self.bases)[:shared] + [self.rng.randrange(self.vocab_size) for _ in range(length)])[
            : self.rng.choice([length, length, self.max_len])
        ]


def random_workload(rng: Random) -> Workload:
    """A workload of up to some 32 requests, small enough to run in milliseconds."""
    vocab_size = rng.choice([3, 17, 200])
    max_model_len = rng.choice([24, 48, 96])
    block_size = rng.choice([1, 2, 3, 4, 8, 16])
    whole = -(-max_model_len // block_size)
    num_blocks = rng.choice([max(whole * 2 // 3, 1), whole, whole + 2, whole * 2, whole * 8])
    eos_token_id = rng.choice([None, 0, vocab_size - 1])
    salted = rng.choice([None, None, None, max_model_len // 4])
    max_num_seqs = rng.randint(1, 8)
    prompts = _Prompts(rng, vocab_size, rng.choice([max_model_len // 3, max_model_len * 2 // 3, max_model_len]))
    submits, aborts, now = [], [], 0
    abort_share, grammar_share = rng.choice([0.0, 0.2, 0.5]), rng.choice([0.0, 0.0, 0.3, 1.0])
    for request_id in range(rng.randint(1, 32)):
        now += rng.choice([0, 0, 0, 1, 3, 12])
        params = _random_params(rng, vocab_size, max_model_len)
        if rng.random() < grammar_share:
            params = replace(params, grammar=_random_grammar(rng))
        submits.append((now, Submit(request_id, prompts.make(), params)))
        if rng.random() < abort_share:
            for _ in range(rng.choice([1, 1, 3])):
                index = rng.choice([None, rng.randrange(params.n)])
                aborts.append((now + rng.choice([0, 1, 2, 3, 5, 8, 13, 40]), Abort(request_id, index)))
    cuts = [(rng.randint(1, now + 50), rng.random()) for _ in range(rng.choice([0, 8, 24]))]
    return Workload(
        config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=rng.choice([1, 2, 5, 16, 64, 512]),
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            eos_token_ids=() if eos_token_id is None else (eos_token_id,),
            enable_prefix_caching=rng.random() < 0.8,
            length_salt_above=salted,
        ),
        model=FakeModel(
            vocab_size,
            eos_token_id=eos_token_id,
            eos_every=rng.choice([0, 5, 40]),
            error_every=rng.choice([0, 0, 0, 0, 300]),
            length_matters_above=salted,
        ),
        num_blocks=num_blocks,
        block_size=block_size,
        chunk_tokens=rng.choice([1, 3, 16, 64, 512]),
        depth=rng.randint(1, 3),
        submits=tuple(submits),
        aborts=tuple(sorted(aborts, key=lambda entry: entry[0])),
        cuts=tuple(sorted(cuts)),
        num_host_blocks=rng.choice([0, 1, num_blocks // 2, 4 * num_blocks, 4 * num_blocks]),
        swap_lag=rng.choice([0, 0, 1, 3, 30]),
        grammar_lag=rng.choice([0, 0, 1, 4, 20]),
    )


def run_workload(workload: Workload, scheduler_type: type[Scheduler] = CheckedScheduler) -> Totals:
    """Serve `workload` and assert that every sample got its reference answer, or when aborted a beginning of it."""
    loop = FakeEngine(
        workload.config,
        workload.model,
        num_blocks=workload.num_blocks,
        block_size=workload.block_size,
        num_host_blocks=workload.num_host_blocks,
        swap_lag=workload.swap_lag,
        grammar_lag=workload.grammar_lag,
        depth=workload.depth,
        chunks=FixedChunks(workload.chunk_tokens),
        scheduler_type=scheduler_type,
    )
    answers, totals = Answers(), Totals(workloads=1)
    submits, aborts, cuts = deque(workload.submits), deque(workload.aborts), deque(workload.cuts)
    now = 0
    while submits or loop.has_work():
        while submits and submits[0][0] <= now:
            totals.refused += not _submit(loop, workload, submits.popleft()[1], answers)
        while aborts and aborts[0][0] <= now:
            loop.abort(aborts.popleft()[1])
        while cuts and cuts[0][0] <= now:
            candidates, fraction = answers.unfinished(), cuts.popleft()[1]
            if candidates:
                loop.abort(Abort(*candidates[int(fraction * len(candidates))]))
        answers.take(loop.step())
        now += 1
        assert now < MAX_STEPS, f"No end after {MAX_STEPS} steps: {loop.stats()}"
    answers.check()
    stats = loop.stats()
    assert stats.num_running == stats.num_waiting == 0, f"Requests are left: {stats}"
    assert stats.num_free_blocks == stats.num_blocks, f"I1: blocks are left: {stats}"
    totals.steps = stats.steps_total
    totals.samples = len(answers.answers)
    totals.tokens = stats.generation_tokens_total
    totals.chunks = stats.prefill_chunks_total
    totals.preemptions = stats.preemptions_total
    totals.prefix_block_hits = stats.prefix_cache_hits_total // workload.block_size
    totals.aborts_in_flight = stats.aborts_in_flight_total
    totals.block_copies = loop.device.num_copies
    totals.host_saves = stats.host_saves_total
    totals.host_loads = stats.host_loads_total
    totals.errors = answers.num_errors
    totals.constrained = sum(submit.params.grammar is not None for _, submit in workload.submits)
    totals.deepest = stats.max_in_flight_seen
    return totals


def _submit(loop: EngineLoop, workload: Workload, submit: Submit, answers: Answers) -> bool:
    """Whether the request was taken; asserts that it was, if and only if it can run."""
    num_cache_tokens = workload.num_blocks * workload.block_size
    room = workload.config.max_model_len - (submit.params.max_tokens != 0)
    possible = len(submit.prompt_token_ids) <= min(room, num_cache_tokens)
    try:
        loop.submit(submit)
    except RequestRefused as refusal:
        assert not possible and str(len(submit.prompt_token_ids)) in str(refusal), f"Refused: {refusal}"
        return False
    assert possible, f"A prompt of {len(submit.prompt_token_ids)} tokens was taken"
    max_num_tokens = min(workload.config.max_model_len, num_cache_tokens + 1)
    for index in range(submit.params.n):
        answers.expect(
            submit.request_id,
            index,
            expected_sample(workload.model, submit.prompt_token_ids, submit.params, index, max_num_tokens),
        )
    return True


def _random_grammar(rng: Random) -> Grammar:
    rule, length = rng.randrange(5), rng.choice([1, 2, rng.randint(1, 20), 200])
    return Grammar(rng.choice([f"{rule} {length}"] * 8 + ["bad", f"{rule} {length} fails"]))


def _random_params(rng: Random, vocab_size: int, max_model_len: int) -> SamplingParams:
    max_tokens = rng.choice([None, 0, 1, 2, rng.randint(1, 12), rng.randint(1, max_model_len)])
    return SamplingParams(
        n=rng.choice([1, 1, 1, 2, 3, 5]),
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.randrange(1000),
        max_tokens=max_tokens,
        min_tokens=0 if max_tokens == 0 else rng.choice([0, 0, 1, max_tokens or 4]),
        stop_token_ids=rng.choice([(), (), (rng.randrange(vocab_size),)]),
        ignore_eos=rng.random() < 0.3,
        logprobs=rng.choice([None, None, 0, 2]),
        prompt_logprobs=rng.choice([None, None, None, 0, 1]),
        priority=rng.choice([0, 0, 0, -1, 3]),
        cache_salt=rng.choice(["", "", "", "a"]),
    )
