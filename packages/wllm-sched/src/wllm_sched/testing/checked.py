"""`CheckedScheduler`: a scheduler that asserts its invariants after every call; slow, for tests."""

from __future__ import annotations

from collections import Counter

from wllm_sched.messages import Abort
from wllm_sched.plan import StepPlan, StepResult
from wllm_sched.scheduler import Scheduler
from wllm_sched.testing.runner import FakeResult


class CheckedScheduler(Scheduler):
    """I1 to I3 and I20 after every plan, commit and abort; I10 and, with a `FakeRunner`'s results, I14."""

    def plan(self) -> StepPlan | None:
        """As the base class."""
        plan = super().plan()
        self.check()
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """As the base class."""
        samples = self._flights[0].samples
        super().commit(plan, result)
        if isinstance(result, FakeResult):
            for row, sample in zip(plan.rows, samples):
                if row.samples and not sample.finished:
                    known, length = len(sample.token_ids), result.lengths[row.slot]
                    assert known == length, f"I14: {known} tokens on the host, {length} on the device"
        self.check()

    def abort(self, abort: Abort) -> None:
        """As the base class."""
        super().abort(abort)
        self.check()

    def check(self) -> None:
        """Assert I1 to I3, I10 and that every reference to a block is accounted for."""
        self.pool.check()
        in_flight = Counter(
            sample for flight in self._flights for row, sample in zip(flight.plan.rows, flight.samples) if row.samples
        )
        references = Counter(() if self.pool.host is None else self.pool.host.held_blocks())
        num_running = num_unfinished = 0
        for request in self._requests.values():
            if request.prompt_table is not None:
                references.update(request.prompt_table.block_ids)
            for sample in request.samples:
                references.update(sample.table.block_ids)
                num_unfinished += not sample.finished
                num_running += sample.slot >= 0
                known = len(sample.token_ids) + in_flight[sample]
                assert sample.finished or sample.computed <= min(known, sample.limit), (
                    f"I10: {sample.computed} tokens planned of {known} known or in flight, limit {sample.limit}"
                )
        assert num_running == len(self._running), f"{num_running} samples have a slot, {len(self._running)} counted"
        assert num_unfinished == self._num_samples, f"{num_unfinished} samples, {self._num_samples} counted"
        for block in range(self.pool.num_blocks):
            held = self.pool.num_references(block)
            assert held == references[block], f"I1: block {block} has {held} references, {references[block]} owners"
