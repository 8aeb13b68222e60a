"""Planted faults: each breaks one rule, and random workloads must notice it.

A harness that finds nothing proves nothing. Most faults remove the rule's own assertion too, so that what notices is
the wrong outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

import wllm_sched.request
from wllm_cache import BlockPool, BlockSwap, BlockTable, HostPool
from wllm_sched.admission import Admission
from wllm_sched.draft import Draft
from wllm_sched.engine import EngineLoop
from wllm_sched.plan import BlockCopy, NewSlot, Row, StepPlan
from wllm_sched.request import Request, Sample
from wllm_sched.scheduler import Scheduler
from wllm_sched.testing import CheckedScheduler, random_workload, run_workload
from wllm_sched.waiting import WaitingLine

SEEDS = range(80)
Plant = Callable[[pytest.MonkeyPatch], type[Scheduler]]


def no_drain_before_preemption(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(CheckedScheduler):
        def _make_room(self) -> bool:
            flights, self._flights = self._flights, type(self._flights)()
            try:
                return super()._make_room()
            finally:
                self._flights = flights

    return Faulty


def partial_block_sealed(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def seal(self: BlockTable, token_ids: Sequence[int], num_tokens: int | None = None) -> int:
        count = len(token_ids) if num_tokens is None else num_tokens
        rounded = min(-(-count // self.pool.block_size), len(self.block_ids)) * self.pool.block_size
        padded = [*token_ids, *[0] * rounded]
        return original(self, padded, rounded)

    original = BlockTable.seal
    patch.setattr(BlockTable, "seal", seal)
    return CheckedScheduler


def chunk_writes_its_token(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def add_chunk(self: Draft, sample: Sample, row: Row) -> None:
        original(self, sample, row._replace(samples=1))

    original = Draft.add_chunk
    patch.setattr(Draft, "add_chunk", add_chunk)
    return CheckedScheduler


def shared_block_freed(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def release(self: BlockPool, block: int) -> None:
        if self._references[block] > 1:
            self._references[block] = 1
        if self._references[block] == 1:
            original(self, block)

    original = BlockPool.release
    patch.setattr(BlockPool, "release", release)
    return Scheduler


def shared_block_leaked(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def release(self: BlockPool, block: int) -> None:
        if self._references[block] == 1:
            original(self, block)

    original = BlockPool.release
    patch.setattr(BlockPool, "release", release)
    return Scheduler


def salt_forgotten(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def chain(self: BlockTable, token_ids: Sequence[int], salt: bytes) -> list[bytes]:
        return original(self, token_ids, b"")

    original = BlockTable._chain
    patch.setattr(BlockTable, "_chain", chain)
    return CheckedScheduler


def stale_hash_kept(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    patch.setattr(BlockPool, "forget", lambda self, block: None)
    return Scheduler


def hashes_without_parents(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def extend(self: BlockTable, token_ids: Sequence[int], num_blocks: int) -> None:
        size = self.pool.block_size
        for index in range(len(self._hashes), num_blocks):
            self._hashes.append(repr((self._root, token_ids[index * size : (index + 1) * size])).encode())

    patch.setattr(BlockTable, "_extend_hashes", extend)
    return CheckedScheduler


def whole_prompt_adopted(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def chain(self: BlockTable, token_ids: Sequence[int], salt: bytes) -> list[bytes]:
        return original(self, [*token_ids, 0], salt)

    original = BlockTable._chain
    patch.setattr(BlockTable, "_chain", chain)
    return CheckedScheduler


def fork_without_its_copy(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def admit(self: Admission, sample: Sample, num_running: int, copies: list[BlockCopy]) -> bool:
        return original(self, sample, num_running, [])

    original = Admission.admit
    patch.setattr(Admission, "admit", admit)
    return CheckedScheduler


def fork_shares_its_last_block(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    patch.setattr(BlockTable, "fork", lambda self, num_tokens: (self.share(num_tokens), None))
    return CheckedScheduler


def sealed_before_launch(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(CheckedScheduler):
        def _plan_chunk(self, sample: Sample, room: int, draft: Draft) -> int:
            count = super()._plan_chunk(sample, room, draft)
            self._after_launch()
            return count

    return Faulty


def sealed_ahead_of_the_plan(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(CheckedScheduler):
        def _after_launch(self) -> None:
            for sample in self._just_planned:
                if self.config.enable_prefix_caching:
                    sample.table.seal(sample.token_ids)
            super()._after_launch()

    return Faulty


def siblings_too_early(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(CheckedScheduler):
        def _after_launch(self) -> None:
            for sample in self._just_planned:
                for sibling in sample.request.share_prompt(sample.table):
                    self._waiting.push(sibling)
            super()._after_launch()

    return Faulty


def prompt_table_not_kept(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def share(self: BlockTable, num_tokens: int) -> BlockTable:
        child = original(self, num_tokens)
        for block in child.block_ids:
            self.pool.release(block)
        return child

    original = BlockTable.share
    patch.setattr(BlockTable, "share", share)
    return Scheduler


def scores_survive_preemption(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(CheckedScheduler):
        def _preempt(self, sample: Sample) -> None:
            scores = sample.scores
            super()._preempt(sample)
            sample.scores = scores

    return Faulty


def scored_prompt_adopts(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def adopt(self: BlockTable, token_ids: Sequence[int], salt: bytes = b"", *, limit: int | None = None) -> int:
        return original(self, token_ids, salt)

    original = BlockTable.adopt
    patch.setattr(BlockTable, "adopt", adopt)
    return CheckedScheduler


def seed_changes_at_admission(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def enter(self: Draft, sample: Sample) -> None:
        original(self, sample)
        entry = self.new_slots[-1]
        self.new_slots[-1] = NewSlot(*entry[:4], seed=entry.seed + len(sample.token_ids))

    original = Draft.enter
    patch.setattr(Draft, "enter", enter)
    return CheckedScheduler


def samples_share_a_seed(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    original = wllm_sched.request.sample_seed
    patch.setattr(wllm_sched.request, "sample_seed", lambda seed, index: original(seed, 0))
    return CheckedScheduler


def limit_off_by_one(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(CheckedScheduler):
        def _plan_decodes(self, draft: Draft) -> None:
            super()._plan_decodes(draft)
            for sample in draft.decode_samples:
                if sample.computed == sample.limit:
                    self._running.decoding[sample.slot] = sample

    return Faulty


def min_tokens_ignored(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(CheckedScheduler):
        def _admit(self, sample: Sample, draft: Draft) -> bool:
            sample.request.params.min_tokens = 0
            return super()._admit(sample, draft)

    return Faulty


def dead_rows_not_ignored(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    class Faulty(Scheduler):
        def _retire(self, sample: Sample) -> None:
            super()._retire(sample)
            sample.finished = False

    return Faulty


def unbounded_flight(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def launch(self: EngineLoop, plan: StepPlan) -> None:
        self.depth += 1
        original(self, plan)

    original = EngineLoop._launch
    patch.setattr(EngineLoop, "_launch", launch)
    return CheckedScheduler


def waiting_line_forgets_the_preempted(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def push(self: WaitingLine, sample: Sample) -> None:
        if len(sample.token_ids) == sample.request.num_prompt_tokens:
            original(self, sample)

    original = WaitingLine.push
    patch.setattr(WaitingLine, "push", push)
    return CheckedScheduler


def no_one_takes_over_the_prompt(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def settle(self: Request, sample: Sample) -> Sample | None:
        original(self, sample)
        return None

    original = Request.settle
    patch.setattr(Request, "settle", settle)
    return CheckedScheduler


def swap_holds_no_block(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def issue(self: HostPool, swap: BlockSwap) -> None:
        original(self, swap)
        self._pool.release(swap.block)

    def finish(self: HostPool, num_done: int) -> None:
        for swap in list(self._under_way)[: max(num_done - self.num_done, 0)]:
            self._pool.retain(swap.block)
        original_finish(self, num_done)

    original, original_finish = HostPool._issue, HostPool.finish
    patch.setattr(HostPool, "_issue", issue)
    patch.setattr(HostPool, "finish", finish)
    return Scheduler


def swap_done_when_launched(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def take(self: HostPool, needed: int = 0) -> tuple[BlockSwap, ...]:
        swaps = original(self, needed)
        self.finish(self._num_taken)
        return swaps

    original = HostPool.take
    patch.setattr(HostPool, "take", take)
    return CheckedScheduler


def loads_not_waited_for(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    patch.setattr(HostPool, "arrival", lambda self, block: 0)
    return CheckedScheduler


def only_the_first_load_waited_for(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    original = HostPool.arrival
    patch.setattr(HostPool, "arrival", lambda self, block: min(original(self, block), self.num_done + 1))
    return CheckedScheduler


def block_on_its_way_adopted_as_there(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def adopt(self: BlockTable, token_ids: Sequence[int], salt: bytes = b"", *, limit: int | None = None) -> int:
        host = self.pool.host
        issued = 0 if host is None else host.num_issued
        num_tokens = original(self, token_ids, salt, limit=limit)
        if self.arrival <= issued:
            self.arrival = 0
        return num_tokens

    original = BlockTable.adopt
    patch.setattr(BlockTable, "adopt", adopt)
    return CheckedScheduler


def host_block_evicted_during_its_swap(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def make_room(self: HostPool) -> int | None:
        if not self._free:
            _, block = self._block_of.popitem(last=False)
            return block
        return self._free.pop()

    patch.setattr(HostPool, "_make_room", make_room)
    return Scheduler


def stale_hash_kept_on_the_host(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    def make_room(self: HostPool) -> int | None:
        if self._free:
            return self._free.pop()
        idle = [block for block in self._block_of.values() if not self._num_swaps[block]]
        return idle[0] if idle else None

    patch.setattr(HostPool, "_make_room", make_room)
    return Scheduler


def saved_after_reuse(patch: pytest.MonkeyPatch) -> type[Scheduler]:
    patch.setattr(BlockPool, "holds", lambda self, block, content_hash: True)
    return CheckedScheduler


FAULTS: list[Plant] = [
    no_drain_before_preemption,
    partial_block_sealed,
    chunk_writes_its_token,
    shared_block_freed,
    shared_block_leaked,
    salt_forgotten,
    stale_hash_kept,
    hashes_without_parents,
    whole_prompt_adopted,
    fork_without_its_copy,
    fork_shares_its_last_block,
    sealed_before_launch,
    sealed_ahead_of_the_plan,
    siblings_too_early,
    prompt_table_not_kept,
    scores_survive_preemption,
    scored_prompt_adopts,
    seed_changes_at_admission,
    samples_share_a_seed,
    limit_off_by_one,
    min_tokens_ignored,
    dead_rows_not_ignored,
    unbounded_flight,
    waiting_line_forgets_the_preempted,
    no_one_takes_over_the_prompt,
    swap_holds_no_block,
    swap_done_when_launched,
    loads_not_waited_for,
    only_the_first_load_waited_for,
    block_on_its_way_adopted_as_there,
    host_block_evicted_during_its_swap,
    stale_hash_kept_on_the_host,
    saved_after_reuse,
]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_noticed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler_type = plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError)) as caught:
        for seed in SEEDS:
            run_workload(random_workload(Random(seed)), scheduler_type)
    print(f"{plant.__name__}: workload {seed}: {type(caught.value).__name__}: {str(caught.value)[:100]}")


def test_the_same_workloads_pass_without_a_fault() -> None:
    for scheduler_type in (Scheduler, CheckedScheduler):
        for seed in SEEDS:
            run_workload(random_workload(Random(seed)), scheduler_type)
