"""`CompilingLine`: requests that wait for their grammar before they may wait for a slot.

Keeps the order in which requests came only as far as their keys do: a slow grammar delays its own request and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from wllm_sched.errors import GrammarFailed
from wllm_sched.grammar import Matcher
from wllm_sched.request import Request


class CompilingLine:
    """Requests and the futures of their matchers, `entries`."""

    def __init__(self) -> None:
        self.entries: list[tuple[Request, Future[Matcher]]] = []

    def push(self, request: Request, future: Future[Matcher]) -> None:
        """Hold `request` back until `future` is done."""
        request.is_compiling = True
        self.entries.append((request, future))

    def drop(self, request: Request) -> None:
        """`request` has ended: forget it, and do not begin with its grammar."""
        for entry in [entry for entry in self.entries if entry[0] is request]:
            entry[1].cancel()
            self.entries.remove(entry)

    def take(self) -> Iterator[tuple[Request, Matcher | str]]:
        """The requests whose grammar is done, each with its matcher or the reason why there is none."""
        entries, self.entries = self.entries, []
        for request, future in entries:
            if not future.done():
                self.entries.append((request, future))
                continue
            request.is_compiling = False
            # Not raised here: a caught error would hold this frame, and so itself and the request.
            error = future.exception()
            yield request, str(error) if isinstance(error, GrammarFailed) else future.result()

    def wait(self, timeout_s: float) -> None:
        """Return when a grammar is done, or when the time is up."""
        if self.entries:
            wait([future for _, future in self.entries], timeout_s, FIRST_COMPLETED)
