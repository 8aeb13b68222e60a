"""Bandwidth of copying within a device's memory: what no decode step can beat."""

from __future__ import annotations

import statistics
from importlib import import_module
from time import perf_counter
from typing import Any

_BYTES = {"cuda": 1 << 30, "cpu": 1 << 28}
_COPIES = 8  # timed together: long against the resolution of a clock and the start of a kernel
_REPEATS = 5


def copy_bandwidth(device: str) -> float:
    """Bytes read plus bytes written a second, by the quicker of torch's `copy_` and an elementwise kernel."""
    torch: Any = import_module("torch")
    size = _BYTES[device]
    if device == "cuda":
        size = min(size, torch.cuda.mem_get_info()[0] // 8)
    try:
        return _quickest(torch, torch.ones(size // 4, dtype=torch.int32, device=device))
    finally:
        if device == "cuda":
            torch.cuda.empty_cache()


def _quickest(torch: Any, source: Any) -> float:
    target = torch.empty_like(source)

    def seconds(elementwise: bool) -> float:
        _wait(torch, source)
        begin = perf_counter()
        for _ in range(_COPIES):
            if elementwise:
                torch.neg(source, out=target)
            else:
                target.copy_(source)
        _wait(torch, source)
        return (perf_counter() - begin) / _COPIES

    medians = []
    for elementwise in (False, True):
        seconds(elementwise)  # warm
        medians.append(statistics.median(seconds(elementwise) for _ in range(_REPEATS)))
    return float(2 * source.nbytes / min(medians))


def _wait(torch: Any, tensor: Any) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()
