"""`RunningSet`: the samples that have a slot, and which of them still have something to plan.

Owns the slot numbers. A running sample is prefilling (its known tokens are not all planned), decoding (it gets one
token of every step), or neither: everything it may compute is planned, and it only waits for results.
"""

from __future__ import annotations

from bisect import insort

from wllm_sched.request import NO_SLOT, Sample


class RunningSet:
    """At most `max_running` samples in `num_slots` slots."""

    def __init__(self, num_slots: int, max_running: int) -> None:
        self.decoding: dict[int, Sample] = {}  # by slot
        self.prefilling: list[Sample] = []  # in order of priority, then arrival
        self._by_slot: dict[int, Sample] = {}
        self._max_running = max_running
        self._free_slots = list(range(num_slots - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._by_slot)

    @property
    def is_full(self) -> bool:
        """Whether no sample can enter."""
        return len(self._by_slot) >= self._max_running

    def enter(self, sample: Sample) -> None:
        """Give `sample` a slot; it begins by prefilling."""
        sample.slot = self._free_slots.pop()
        self._by_slot[sample.slot] = sample
        insort(self.prefilling, sample)

    def finish_prefill(self, sample: Sample) -> None:
        """All known tokens are planned: from now on one token a step, if there is any left to compute."""
        self.prefilling.remove(sample)
        if sample.computed < sample.limit:
            self.decoding[sample.slot] = sample

    def leave(self, sample: Sample) -> None:
        """Take the slot back."""
        if self.decoding.pop(sample.slot, None) is None and sample in self.prefilling:
            self.prefilling.remove(sample)
        del self._by_slot[sample.slot]
        self._free_slots.append(sample.slot)
        sample.slot = NO_SLOT

    def last(self) -> Sample:
        """The sample that is preempted first: lowest priority, then latest arrival."""
        return max(self._by_slot.values())
