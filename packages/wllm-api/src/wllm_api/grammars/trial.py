"""`try_grammar`: compiles a grammar where that can be stopped, in a process that is killed when it takes too long.

Some schemas take the compiler minutes (a multiple of a large number, patterns that must hold together), and a thread
cannot be stopped. The processes know no tokenizer: what takes that long has none to do with it. They begin with the
first grammar, and serve all checkers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import re
import signal
import threading
from collections.abc import Callable
from typing import cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from wllm_api.engine.job_object import end_with_this_process
from wllm_api.engine.wire import Channel
from wllm_api.errors import GrammarError
from wllm_api.power_throttling import refuse_throttling
from wllm_sched.grammar import Grammar, Limits

# Real schemas take milliseconds, the widest 0.3 s.
TIMEOUT_S = 5.0
# Starting a process takes a second, and ten on a machine that is busy.
_START_S = 60.0
# A special token by its id or its name, but no group of an expression: it must be one that the process knows.
_SPECIAL = re.compile(r"(?<!\?P)(?<!\?)<(\[[^\]>]*\]|\|?[\w/.:-]+\|?)>")
_idle: queue.SimpleQueue[_Trial] = queue.SimpleQueue()


def try_grammar(grammar: Grammar) -> None:
    """Raise `GrammarError` for a grammar that takes longer than `TIMEOUT_S`, whatever else is wrong with it."""
    try:
        trial = _idle.get_nowait()
    except queue.Empty:
        trial = _Trial()
    trial.run(grammar)
    _idle.put(trial)


class _Trial:
    """A process and the pipe to it; after an error it has ended."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs,), name="wllm-grammar-trial", daemon=True)
        self._process.start()
        theirs.close()
        with contextlib.suppress(OSError):  # then the end of the pipe alone ends it with this process
            end_with_this_process(cast(int, self._process.pid))
        self._await(_START_S, f"The process that compiles did not start within {_START_S:g} s. Try again")

    def run(self, grammar: Grammar) -> None:
        """Compile; raises `GrammarError` where that takes too long."""
        with contextlib.suppress(OSError):  # it has ended, as is seen below
            self._channel.send((grammar.text, grammar.limits))
        self._await(TIMEOUT_S, f"It was not compiled within {TIMEOUT_S:g} s. Use a simpler one")

    def _await(self, timeout_s: float, problem: str) -> None:
        try:
            if self._channel.poll(timeout_s):
                self._channel.recv_bytes()
                return
        except (EOFError, OSError):
            problem = "The compiler ended on it. Use a simpler one"
        self._process.kill()
        self._process.join()
        self._channel.close()
        raise GrammarError(f"{problem}.")


def _main(channel: Channel) -> None:
    # A Ctrl+C in the console is for the server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    refuse_throttling()
    asked: queue.SimpleQueue[tuple[str, Limits]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, asked.put), daemon=True).start()
    tokenizer = LLTokenizer("byte")
    while True:
        channel.send_bytes(b"ready")
        text, limits = asked.get()
        matcher = LLMatcher(tokenizer, _SPECIAL.sub("<[0]>", text), log_level=0, limits=LLParserLimits(**limits))
        if not matcher.is_error():
            matcher.compute_bitmask()


def _read(channel: Channel, put: Callable[[tuple[str, Limits]], None]) -> None:
    # In a thread, so that the end of the server ends a compilation too.
    try:
        while True:
            put(channel.recv())
    except (EOFError, OSError):
        os._exit(0)
