"""`WaitingLine`: samples that have no slot, in order of priority, then arrival.

A preempted sample keeps its place, since its key does not change. Nothing overtakes the head: a big prompt is not
starved by small ones that would fit.
"""

from __future__ import annotations

import heapq

from wllm_sched.request import Sample

_SPARE = 16


class WaitingLine:
    """A priority queue of samples.

    One that finished while it waited is dropped when it would come up, or when the line has doubled since it was last
    cleared: behind a head that does not move, samples that come and are aborted would add up.
    """

    def __init__(self) -> None:
        self._heap: list[Sample] = []
        self._clear_at = _SPARE

    def push(self, sample: Sample) -> None:
        """Put `sample` where its priority and arrival belong."""
        if len(self._heap) >= self._clear_at:
            self._heap = [waiting for waiting in self._heap if not waiting.finished]
            heapq.heapify(self._heap)
            self._clear_at = 2 * len(self._heap) + _SPARE
        heapq.heappush(self._heap, sample)

    def head(self) -> Sample | None:
        """The sample whose turn it is, or None."""
        while self._heap and self._heap[0].finished:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop(self) -> Sample:
        """Take the head out."""
        return heapq.heappop(self._heap)
