"""One spawned engine process, seen from the server: its pipe, two threads, and its end.

The reader thread hands every message to the event loop, and the exit code at last. The writer thread keeps a full pipe
from blocking the loop. `EngineProcess` makes a new one for each start.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import multiprocessing
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping

from wllm_api.engine import child
from wllm_api.engine.job_object import end_with_this_process
from wllm_api.engine.wire import Channel, FromEngine, ToEngine

logger = logging.getLogger(__name__)

_EXIT_GRACE_S = 5.0  # from the end of the pipe to the end of the process


if sys.platform == "win32":

    @contextlib.contextmanager
    def _interrupts_ignored() -> Iterator[None]:
        # A child inherits this, so that a Ctrl+C before its first line of Python does not end it.
        set_handler = ctypes.WinDLL("kernel32").SetConsoleCtrlHandler
        set_handler(None, True)
        try:
            yield
        finally:
            set_handler(None, False)

else:

    @contextlib.contextmanager
    def _interrupts_ignored() -> Iterator[None]:
        # The same here; but signal handlers belong to the main thread.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)


class SpawnedEngine:
    """A running engine process; `on_message` and `on_end(exit_code)` are called in the running event loop."""

    def __init__(
        self,
        factory: str,
        options: Mapping[str, object],
        on_message: Callable[[SpawnedEngine, FromEngine], None],
        on_end: Callable[[SpawnedEngine, int | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_end = on_end
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        context = multiprocessing.get_context("spawn")
        channel, child_channel = context.Pipe()
        self._channel: Channel = channel
        self._process = context.Process(
            target=child.main, args=(child_channel, factory, dict(options)), name="wllm-engine", daemon=True
        )
        try:
            with _interrupts_ignored():
                self._process.start()
        except OSError:
            channel.close()
            raise
        finally:
            child_channel.close()  # else this end would keep the pipe open after the child's death
        assert self._process.pid is not None, "a started process has an id"
        self.pid = self._process.pid
        try:
            end_with_this_process(self.pid)
        except OSError as error:
            logger.warning("No job object for the engine process (%s): it ends by its pipe alone", error)
        threading.Thread(target=self._read, name="wllm-engine-reader", daemon=True).start()
        threading.Thread(target=self._write, name="wllm-engine-writer", daemon=True).start()

    def send(self, message: ToEngine) -> None:
        """Queue a message; lost without an error when the process is gone, which `on_end` tells."""
        self._outbox.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def kill(self) -> None:
        """End the process at once; `on_end` follows."""
        self._process.kill()

    def _read(self) -> None:
        try:
            while True:
                self._call(self._on_message, self._channel.recv())
        except (EOFError, OSError):
            pass
        except Exception:
            logger.exception("A message of the engine process cannot be read; the process is ended")
            self._process.kill()
        self._process.join(_EXIT_GRACE_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._outbox.put(None)
        self._call(self._on_end, self._process.exitcode)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            with contextlib.suppress(OSError):  # the pipe is broken: the reader tells
                self._channel.send_bytes(message)
        self._channel.close()

    def _call(self, function: Callable[..., None], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(function, self, argument)
