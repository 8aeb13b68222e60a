"""One spawned engine process, seen from the server: its pipe, three threads, and its end.

The reader thread hands every message to the event loop, the writer thread keeps a full pipe from blocking it, and the
watcher thread tells it the exit code at last. `EngineProcess` makes a new one for each start.
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
from multiprocessing import resource_tracker

from wllm_api.engine import child
from wllm_api.engine.job_object import end_with_this_process
from wllm_api.engine.wire import Channel, Failure, FromEngine, ToEngine

logger = logging.getLogger(__name__)

_EXIT_GRACE_S = 5.0  # from the end of the pipe, or the engine's last word, to the end of the process
_LAST_WORDS_S = 1.0  # from the end of the process to the end of the pipe


if sys.platform == "win32":

    @contextlib.contextmanager
    def _interrupts_ignored() -> Iterator[None]:
        # A child inherits this, so that a Ctrl+C before its first line of Python does not end it. One that comes in
        # these milliseconds is lost to this process too and must be pressed again: Windows cannot hold it back.
        set_handler = ctypes.WinDLL("kernel32").SetConsoleCtrlHandler
        set_handler(None, True)
        try:
            yield
        finally:
            set_handler(None, False)

else:

    @contextlib.contextmanager
    def _interrupts_ignored() -> Iterator[None]:
        # The child inherits the block, and this process gets an interrupt that comes meanwhile when the block ends;
        # ignoring it would lose it. Starting the resource tracker unblocks the signal, so it is started before.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
        self._outbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
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
        self._exited = threading.Event()
        self._reader = threading.Thread(target=self._read, name="wllm-engine-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="wllm-engine-writer", daemon=True)
        for thread in (self._reader, self._writer):
            thread.start()
        threading.Thread(target=self._watch, name="wllm-engine-watcher", daemon=True).start()

    def send(self, message: ToEngine) -> None:
        """Queue a message; lost without an error when the process is gone, which `on_end` tells."""
        self._outbox.put(message)

    def kill(self) -> None:
        """End the process at once; `on_end` follows."""
        self._process.kill()

    def _read(self) -> None:
        try:
            message = None
            while not isinstance(message, Failure):  # its last word; a driver that lost its GPU may not let it end
                message = self._channel.recv()
                self._call(self._on_message, message)
        except (EOFError, OSError):
            pass
        except Exception:
            logger.exception("A message of the engine process cannot be read; the process is ended")
            self._process.kill()
        if not self._exited.wait(_EXIT_GRACE_S):
            self._process.kill()

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            with contextlib.suppress(OSError):  # the pipe is broken: the watcher tells
                # Pickled here, since it takes its time where prompts are long and many.
                self._channel.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _watch(self) -> None:
        # The end of the process, not of the pipe, is its end: on Windows, a process that is killed before it took over
        # its end of the pipe leaves that end open in this process, and no end of file ever comes.
        self._process.join()
        self._exited.set()
        self._reader.join(_LAST_WORDS_S)
        self._call(self._on_end, self._process.exitcode)
        self._outbox.put(None)
        if not self._reader.is_alive():
            self._writer.join()
            self._channel.close()

    def _call(self, function: Callable[..., None], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(function, self, argument)
