"""What torch's profiler saw, reduced: time by kernel, how long the GPU had nothing to do, calls of the driver."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

# Calls of the CUDA runtime (cudaLaunchKernel) and of the driver (cuLaunchKernelEx).
_DRIVER_CALL = re.compile(r"cu(da)?[A-Z]\w*")


class Span(NamedTuple):
    """One event; times in microseconds. Spans of one `thread` nest."""

    name: str
    begin: float
    end: float
    on_device: bool
    thread: int = 0


class KernelTime(NamedTuple):
    """All runs of one kernel or operator: microseconds in all, and how often it ran."""

    name: str
    total_us: float
    runs: int


def spans_of(profile: Any) -> list[Span]:
    """The events of a finished `torch.profiler.profile`."""
    return [
        Span(event.name, event.time_range.start, event.time_range.end, event.device_type.name == "CUDA", event.thread)
        for event in profile.events()
    ]


def kernel_times(spans: Sequence[Span]) -> list[KernelTime]:
    """What ran on the device (kernels and copies), the longest first."""
    return _totals((span.name, span.end - span.begin) for span in spans if span.on_device)


def operator_times(spans: Sequence[Span]) -> list[KernelTime]:
    """What ran on a CPU: each operator without those that it called, the longest first."""
    own: list[tuple[str, float]] = []
    open_ones: list[tuple[Span, int]] = []  # with its index in `own`, the innermost last
    on_host = [span for span in spans if not span.on_device]
    for span in sorted(on_host, key=lambda span: (span.thread, span.begin, -span.end)):
        while open_ones and (open_ones[-1][0].thread != span.thread or open_ones[-1][0].end <= span.begin):
            open_ones.pop()
        took = span.end - span.begin
        if open_ones:
            name, time = own[open_ones[-1][1]]
            own[open_ones[-1][1]] = (name, time - took)
        open_ones.append((span, len(own)))
        own.append((span.name, took))
    return _totals(own)


def _totals(parts: Iterable[tuple[str, float]]) -> list[KernelTime]:
    totals: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for name, microseconds in parts:
        totals[name] += microseconds
        counts[name] += 1
    return sorted((KernelTime(name, total, counts[name]) for name, total in totals.items()), key=lambda t: -t.total_us)


def idle_share(spans: Sequence[Span]) -> float | None:
    """Share of the time from the first to the last event on the device in which it ran nothing; None without events."""
    busy = sorted((span.begin, span.end) for span in spans if span.on_device)
    if not busy:
        return None
    covered, reached = 0.0, busy[0][0]
    for begin, end in busy:
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return 1.0 - covered / (reached - busy[0][0])


def driver_calls(spans: Sequence[Span]) -> Counter[str]:
    """Calls of CUDA's runtime and driver that the profiler records, by name."""
    return Counter(span.name for span in spans if not span.on_device and _DRIVER_CALL.fullmatch(span.name))
