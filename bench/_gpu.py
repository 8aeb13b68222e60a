"""Timing on a GPU: replays of a CUDA graph, with buffers that rotate so that no run finds its data in the L2.

`Gpu` measures the copy bandwidth of the machine once; every fraction in a table is of that number or of a torch call
timed by the same object, so that no ratio mixes two runs.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch

# One call of the work under test, with the copy of its buffers that it shall use; returns what must stay alive.
Call = Callable[[int], object]

_GRAPH_SECONDS = 5e-3  # of one replay: long against the resolution of events and the start of a graph
_MAX_CALLS = 1024  # in one graph
_COLD_L2S = 4  # times the L2 that a round over all copies reads


class Time(NamedTuple):
    """Seconds of one call: the median of the repeats, and the least."""

    median: float
    low: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """The device under test and how it is timed."""

    device: torch.device
    repeats: int
    l2_bytes: int
    copy_bandwidth: float  # bytes read plus bytes written a second, by torch's fastest device-to-device copy

    @classmethod
    def open(cls, repeats: int) -> Gpu:
        """Warm the current GPU up and measure its copy bandwidth."""
        device = torch.device("cuda", torch.cuda.current_device())
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        gpu = cls(device, repeats, l2_bytes, math.nan)
        size = min(1 << 30, torch.cuda.mem_get_info(device)[0] // 8)
        return cls(device, repeats, l2_bytes, 2 * size / gpu.time_copy(2 * size).median)

    def copies(self, bytes_moved: int) -> int:
        """How many copies of the buffers of a call that moves this much are needed for cold caches."""
        return max(1, math.ceil(_COLD_L2S * self.l2_bytes / max(bytes_moved, 1)))

    def time(self, call: Call, copies: int = 1) -> Time:
        """Time `call(0)`, `call(1)` .. `call(copies - 1)`, again and again, from a graph."""
        copies = min(copies, _MAX_CALLS)
        seconds = self._estimate(call, copies)
        rounds = min(math.ceil(_GRAPH_SECONDS / max(seconds * copies, 1e-6)), max(1, _MAX_CALLS // copies))
        graph = torch.cuda.CUDAGraph()
        # Results stay alive for a round, or every call would write to the same memory, which the L2 holds.
        kept: deque[object] = deque(maxlen=copies)
        with torch.cuda.graph(graph):
            for _ in range(rounds):
                for copy in range(copies):
                    kept.append(call(copy))
        samples = [seconds / (rounds * copies) for seconds in self._replay(graph)]
        return Time(statistics.median(samples), min(samples))

    def time_copy(self, bytes_moved: int) -> Time:
        """A device-to-device copy that reads and writes this much in all, cold: the fastest way that torch has.

        In a graph `copy_` is a memcpy node, which on some drivers is slower than a kernel that moves the same bytes.
        """
        copies = self.copies(bytes_moved)
        source = torch.randint(-128, 127, (copies, bytes_moved // 8), dtype=torch.int32, device=self.device)
        target = torch.empty_like(source)
        return min(
            self.time(lambda i: target[i].copy_(source[i]), copies),
            self.time(lambda i: torch.neg(source[i], out=target[i]), copies),
            key=lambda time: time.median,
        )

    def host_seconds(self, call: Call, calls: int = 400) -> float:
        """Seconds of host time that launching one call takes: the least of the repeats, with an empty queue."""
        best = math.inf
        for _ in range(self.repeats):
            torch.cuda.synchronize()
            begin = perf_counter()
            for _ in range(calls):
                call(0)
            best = min(best, (perf_counter() - begin) / calls)
        torch.cuda.synchronize()
        return best

    def _estimate(self, call: Call, copies: int) -> float:
        """Seconds of one call, roughly; also loads, allocates and warms up whatever the call needs."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for copy in range(min(copies, 3)):
                call(copy)
            begin, end = _event(), _event()
            begin.record()
            for i in range(3):
                call(i % copies)
            end.record()
            end.synchronize()
        torch.cuda.current_stream().wait_stream(side)
        return float(begin.elapsed_time(end)) * 1e-3 / 3

    def _replay(self, graph: torch.cuda.CUDAGraph) -> list[float]:
        graph.replay()
        graph.replay()
        events = []
        for _ in range(self.repeats):
            begin, end = _event(), _event()
            begin.record()
            graph.replay()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
