"""What Ctrl+C does in this process: between the steps of an engine, and while a model comes from the hub."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from wllm.console import complain

INTERRUPTED = 130  # the exit code, as shells give it


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Let Ctrl+C wait for the end of the block, since half a step cannot be repeated; a second one does not wait.

    Does nothing outside the main thread.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    pressed: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        if pressed:
            previous(number, frame)
        pressed.append((number, frame))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if pressed:
        previous(*pressed[0])


@contextmanager
def ending_interrupts(farewell: str) -> Iterator[None]:
    """Let Ctrl+C in the block say `farewell` and end the process at once, in the main thread of a command.

    The hub's client fetches in threads, for which an exception would wait: minutes, with a large file.
    """

    def end(number: int, frame: FrameType | None) -> None:
        complain(f"\n{farewell}")
        os._exit(INTERRUPTED)

    previous = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
