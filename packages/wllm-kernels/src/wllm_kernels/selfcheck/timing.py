"""What a small kernel costs on this machine, launched one by one and from a CUDA graph.

Where the first is tens of microseconds and the second a few, steps wait for launches and not for the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from wllm_kernels import rms_norm

_CALLS = 400  # timed together: long against the end of a queue and the start of a graph
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """Microseconds from one kernel to the next: the least of the repeats."""

    single_us: float
    graph_us: float


def launch_times() -> LaunchTimes:
    """Time norms of one row on torch's current GPU, which shall be idle."""
    x, weight = torch.ones(1, 64, device="cuda"), torch.ones(64, device="cuda")

    def calls() -> None:
        for _ in range(_CALLS):
            rms_norm(x, weight, 1e-5)

    # The first run loads the kernel; on a stream of its own, as a capture wants it.
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        calls()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    return LaunchTimes(_microseconds(calls), _microseconds(graph.replay))


def _microseconds(run: Callable[[], None]) -> float:
    least = math.inf
    for _ in range(_REPEATS + 1):  # one to warm up
        torch.cuda.synchronize()
        begin = perf_counter()
        run()
        torch.cuda.synchronize()
        least = min(least, perf_counter() - begin)
    return least / _CALLS * 1e6
