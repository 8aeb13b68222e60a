"""`WaitingLine`: samples that have no slot, in order of priority, then arrival.

A preempted sample keeps its place, since its key does not change. Nothing overtakes the head: a big prompt is not
starved by small ones that would fit.
"""

from __future__ import annotations

import heapq

from wllm_sched.request import Sample


class WaitingLine:
    """A priority queue of samples; one that finished while it waited is dropped when it would come up."""

    def __init__(self) -> None:
        self._heap: list[Sample] = []

    def push(self, sample: Sample) -> None:
        """Put `sample` where its priority and arrival belong."""
        heapq.heappush(self._heap, sample)

    def head(self) -> Sample | None:
        """The sample whose turn it is, or None."""
        while self._heap and self._heap[0].finished:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> Sample:
        """Take the head out."""
        return heapq.heappop(self._heap)
