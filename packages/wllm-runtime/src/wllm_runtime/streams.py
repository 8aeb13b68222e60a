"""Where steps run, in order: a CUDA stream, or on a CPU one worker thread.

`submit` starts a step and returns at once. A step is a function that enqueues its work and returns another, which turns
the results on the host into Python objects; that one runs in `Handle.wait`, once the work is done. So the same code
serves both devices, and two steps in flight mean the same on both.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Step = Callable[[], Callable[[], T]]


class Handle(Protocol[T_co]):
    """A submitted step."""

    def wait(self) -> T_co:
        """Block until the step has run, and return its results; raises what the step raised. May be repeated."""


class StepStream(Protocol):
    """Runs steps one after the other."""

    def submit(self, step: Step[T]) -> Handle[T]:
        """Start the step."""

    def close(self) -> None:
        """Wait for everything that was submitted, and take no more."""


class WorkerStream:
    """The stream of a CPU: one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wllm-step")

    def submit(self, step: Step[T]) -> Handle[T]:
        """Start the step in the thread."""
        return _WorkerHandle(self._thread.submit(step))

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=True)


class _WorkerHandle(Handle[T]):
    def __init__(self, future: Future[Callable[[], T]]) -> None:
        self._future = future

    def wait(self) -> T:
        return self._future.result()()


class CudaStream:
    """The CUDA stream that is current on `device` now; no call here but `wait` and `close` waits for the GPU.

    `spin`: waiting takes a core and notices the end soonest; else the thread sleeps until the driver wakes it.
    """

    def __init__(self, device: torch.device, depth: int, spin: bool) -> None:
        self._stream = torch.cuda.current_stream(device)
        # As the ring of host memory: an event is recorded again only after its step was waited for.
        self._events = cycle(
            [
                torch.cuda.Event(blocking=not spin)  # type: ignore[no-untyped-call]
                for _ in range(depth + 1)
            ]
        )

    def submit(self, step: Step[T]) -> Handle[T]:
        """Enqueue the step here and now, whatever device and stream are the calling thread's."""
        # The device first: torch would give the thread's own one a context, and so memory, when the stream ends.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            collect = step()
        event = next(self._events)
        event.record(self._stream)
        return _EventHandle(event, collect)

    def close(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self._stream.device)


class _EventHandle(Handle[T]):
    def __init__(self, event: torch.cuda.Event, collect: Callable[[], T]) -> None:
        self._event, self._collect = event, collect

    def wait(self) -> T:
        self._event.synchronize()  # in the driver, without the GIL
        return self._collect()


def open_stream(device: torch.device, depth: int, spin: bool) -> StepStream:
    """The stream of a device, for `depth` steps in flight."""
    return CudaStream(device, depth, spin) if device.type == "cuda" else WorkerStream()
