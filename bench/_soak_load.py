"""Sends the soak test's requests for a while and judges every answer."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from time import perf_counter

from _soak_answers import Choice, Reply, faults
from _soak_requests import Mix, Request

from wllm.bench.serve_http import ConnectionLost, Server, exchange

TIMEOUT_S = 120.0
# A client that was held back does not make up for all of it.
MAX_BEHIND_S = 0.5
# Some arrivals are many at once: only then do requests wait and blocks run out on a machine that is fast enough.
BURST, BURST_SHARE = 32, 0.02
# The parity rule: a greedy token may differ where the two best log-probabilities are as close as this, ...
CLOSE = 1e-4
# ... in this share of all positions at most.
MAX_EXCUSED_SHARE = 1e-3
MAX_VIOLATIONS = 20


@dataclass(slots=True)
class Tally:
    """What has been seen. `differing` probes are violations only where the arithmetic is exact."""

    sent: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    probed: int = 0
    probed_positions: int = 0
    differing: int = 0
    excused: int = 0
    left_in_time: int = 0
    held_back: int = 0
    violations: list[str] = field(default_factory=list)


class Load:
    """`exact`: the same probe must get the same tokens. `max_open` requests are open at a time; later ones wait."""

    def __init__(self, server: Server, mix: Mix, *, rate: float, max_open: int, exact: bool, seed: int) -> None:
        self.tally = Tally()
        self._server = server
        self._mix = mix
        self._rate = rate
        self._max_open = max_open
        self._exact = exact
        self._numbers = random.Random(f"arrivals {seed}")
        self._known: dict[str, dict[int, Choice]] = {}
        self._open: set[asyncio.Task[None]] = set()

    @property
    def num_open(self) -> int:
        """Requests that have no end yet."""
        return len(self._open)

    async def run(self, seconds: float) -> None:
        """Send for that long, then wait until every request has ended."""
        due = begin = perf_counter()
        while (due := due + self._numbers.expovariate(self._rate)) < begin + seconds:
            if len(self.tally.violations) >= MAX_VIOLATIONS:
                break
            due = max(due, perf_counter() - MAX_BEHIND_S)
            await asyncio.sleep(max(due - perf_counter(), 0))
            is_burst = self._numbers.random() < BURST_SHARE
            for request in self._mix.burst(BURST) if is_burst else [self._mix.draw()]:
                await self._send(request)
        if self._open:
            await asyncio.wait(self._open)

    async def _send(self, request: Request) -> None:
        if len(self._open) >= self._max_open:
            self.tally.held_back += 1
            await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._one(request))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    def close(self) -> None:
        """Judge what only the whole run shows."""
        tally = self.tally
        if self._exact and tally.excused > MAX_EXCUSED_SHARE * tally.probed_positions:
            tally.violations.append(
                f"{tally.excused} of {tally.probed_positions} positions of greedy probes differed where the two best "
                f"were within {CLOSE}"
            )

    async def _one(self, request: Request) -> None:
        self.tally.sent[request.kind] = self.tally.sent.get(request.kind, 0) + 1
        try:
            for fault in await self._faults(request):
                self.tally.violations.append(f"{request.kind}: {fault}; request {_short(request.body)}")
        except Exception as error:
            self.tally.violations.append(f"{request.kind}: {type(error).__name__}: {error}; {_short(request.body)}")

    async def _faults(self, request: Request) -> list[str]:
        body, pieces = request.body, bytearray()

        def take(data: bytes, now: float) -> bool:
            pieces.extend(data)
            return request.leave_after_events is None or pieces.count(b"data: ") < request.leave_after_events

        message = self._server.request("POST", request.path, body)
        wait_s = TIMEOUT_S if request.leave_after_s is None else request.leave_after_s
        try:
            async with asyncio.timeout(wait_s):
                answer = await exchange(self._server, message, take)
        except TimeoutError:
            if request.leave_after_s is None:
                return [f"stuck: no end after {TIMEOUT_S:g} s"]
            self.tally.left_in_time += 1
            return []
        except ConnectionLost as error:
            return [f"the connection was lost: {error}"]
        if answer.hung_up:
            self.tally.left_in_time += 1
            return []
        streamed = bool(body.get("stream"))
        reply = Reply.read(answer.status, bytes(pieces) or bytes(answer.body), streamed=streamed)
        if request.status != 200:
            return [] if answer.status == request.status else [f"status {answer.status} instead of {request.status}"]
        wrong = list(faults(reply, body))
        self.tally.tokens += sum(len(choice.token_ids) for choice in reply.choices.values())
        if request.probe is not None and not wrong:
            wrong += self._differences(request.probe, reply)
        return wrong

    def _differences(self, probe: str, reply: Reply) -> list[str]:
        known = self._known.setdefault(probe, reply.choices)
        if known is reply.choices:
            return []
        self.tally.probed += 1
        wrong = []
        for index, choice in reply.choices.items():
            first = known[index]
            self.tally.probed_positions += len(choice.token_ids)
            if choice.token_ids == first.token_ids:
                continue
            place = next(i for i, (a, b) in enumerate(zip(choice.token_ids, first.token_ids, strict=True)) if a != b)
            if _is_close(first, place):
                self.tally.excused += 1
                continue
            self.tally.differing += 1
            if self._exact:
                wrong.append(f"{probe}: token {place} differs: {choice.token_ids} after {first.token_ids}")
        return wrong


def _is_close(choice: Choice, place: int) -> bool:
    if not choice.top:
        return False
    best = sorted(choice.top[place].values(), reverse=True)
    return len(best) > 1 and best[0] - best[1] <= CLOSE


def _short(body: dict[str, object]) -> str:
    text = repr(body)
    return text if len(text) <= 300 else f"{text[:300]}..."
