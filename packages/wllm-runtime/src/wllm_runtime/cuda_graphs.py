"""CUDA graphs as the backend of `GraphSet`: all of them share one memory pool, since one replays at a time."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

import torch

from wllm_runtime.graphs import GraphBackend, Replay, Timing

_RUNS = 3
# cuBLAS keeps a workspace (32 MiB on some GPUs) for every stream that it ever ran on, so streams are used again.
_FREE_STREAMS: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)


class CudaGraphs:
    """Captures on a stream of its own; work that is not captured, and replays, run on the current one of `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        free = _FREE_STREAMS[device]
        self._stream = free.pop() if free else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        weakref.finalize(self, free.append, self._stream)

    def capture(self, work: Callable[[], None]) -> Replay:
        """Run `work` once, so that libraries have loaded what it needs, and record it."""
        graph = torch.cuda.CUDAGraph()
        work()
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            # Other threads of the process may go on using CUDA.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # a capture that broke says so once more
                    graph.capture_end()
                self._end_allocating()
                raise
            graph.capture_end()
        return graph.replay

    def _end_allocating(self) -> None:
        """Tell torch's allocator that the capture is over: else it would never again free what it caches.

        `capture_end` of a capture that broke leaves that out, or not: https://github.com/pytorch/pytorch/pull/180395.
        """
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # where it was told already
            torch._C._cuda_endAllocateToPool(index, self._pool)

    def measure(self, work: Callable[[], object]) -> Timing:
        """The best of three calls, after one that is not timed."""
        work()
        timings = []
        for _ in range(_RUNS):
            torch.cuda.synchronize(self._device)
            start = perf_counter()
            work()
            enqueued = perf_counter()
            torch.cuda.synchronize(self._device)
            timings.append(Timing(enqueued - start, perf_counter() - start))
        return Timing(min(t.host_s for t in timings), min(t.total_s for t in timings))


def graph_backend(device: torch.device) -> GraphBackend | None:
    """What records steps on a device; None where there is nothing to win."""
    return CudaGraphs(device) if device.type == "cuda" else None
