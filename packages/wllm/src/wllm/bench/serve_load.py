"""Sends requests when they are due and keeps what became of each.

Arrivals are paced by a thread with `time.sleep`, never by timers of the event loop, which tick every 15.6 ms on
Windows. The event loop's lag is measured beside the load: a client that cannot keep up measures itself.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from wllm.bench.serve_http import ConnectionLost, Server, exchange
from wllm.bench.serve_stream import Stream

PROBE_INTERVAL_S = 0.02


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Seconds; `times` are those of the events that brought tokens, counted from the sending.

    `failure` is the kind of failure, None for a whole answer; `reason` says more.
    """

    sent_s: float  # after the first request was due
    late_s: float  # after this request was due
    took_s: float
    times: Sequence[float] = ()
    prompt_tokens: int | None = None
    output_tokens: int = 0
    failure: str | None = None
    reason: str = ""


@dataclass(slots=True)
class LoadRun:
    """All outcomes, in the order of the requests, and how well the client kept up."""

    outcomes: list[Outcome]
    duration_s: float = 0.0
    lags_s: array[float] = field(default_factory=lambda: array("d"))
    cpu_share: float = 0.0  # of one core, used by this process


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds at which requests are due; `rate` a second on average, infinity for all at once."""
    if rate == float("inf"):
        return [0.0] * count
    numbers = random.Random(f"arrivals {seed}")
    now, due = 0.0, []
    for _ in range(count):
        due.append(now)
        now += numbers.expovariate(rate)
    return due


async def run_load(
    server: Server,
    requests: Sequence[bytes],
    due_s: Sequence[float],
    *,
    timeout_s: float,
    max_concurrency: int | None = None,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> LoadRun:
    """Send `requests[i]` `due_s[i]` seconds from now; ends when every request has."""
    loop = asyncio.get_running_loop()
    limit = asyncio.Semaphore(max_concurrency or len(requests))
    tasks: list[asyncio.Task[Outcome]] = []
    started: asyncio.Future[None] = loop.create_future()
    run = LoadRun([])
    begin, cpu_begin = perf_counter(), time.process_time()

    async def request(index: int) -> Outcome:
        async with limit:
            outcome = await _measured(server, requests[index], begin, begin + due_s[index], timeout_s)
        on_end(outcome)
        return outcome

    def launch(index: int) -> None:
        tasks.append(asyncio.create_task(request(index)))
        if len(tasks) == len(requests):
            started.set_result(None)

    def probe(asked: float) -> None:
        run.lags_s.append(perf_counter() - asked)

    over = threading.Event()
    threads = [
        threading.Thread(target=_pace, args=(loop, launch, begin, due_s, over), name="wllm-bench-pace"),
        threading.Thread(target=_probe, args=(loop, probe, over), name="wllm-bench-probe"),
    ]
    for thread in threads:
        thread.start()
    try:
        if requests:
            await started
        run.outcomes = list(await asyncio.gather(*tasks))
    finally:
        over.set()
        for task in tasks:
            task.cancel()
        for thread in threads:
            thread.join()
    run.duration_s = max((outcome.sent_s + outcome.took_s for outcome in run.outcomes), default=0.0)
    run.cpu_share = (time.process_time() - cpu_begin) / (perf_counter() - begin)
    return run


async def _measured(server: Server, request: bytes, begin: float, due: float, timeout_s: float) -> Outcome:
    stream = Stream()
    sent = perf_counter()
    failure, reason = None, ""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await exchange(server, request, stream.feed)
        if answer.status != 200:
            failure, reason = f"http {answer.status}", bytes(answer.body[:500]).decode(errors="replace")
    except TimeoutError:
        failure, reason = "timeout", f"not over after {timeout_s:g} s"
    except ConnectionLost as error:
        failure, reason = "connection lost", str(error)
    except OSError as error:
        failure, reason = "no connection", str(error)
    took = perf_counter() - sent
    stream.close()
    if failure is None:
        failure, reason = _fault_of(stream)
    return Outcome(
        sent_s=sent - begin,
        late_s=sent - due,
        took_s=took,
        times=[at - sent for at in stream.times],
        prompt_tokens=stream.prompt_tokens,
        output_tokens=len(stream.times) if stream.output_tokens is None else stream.output_tokens,
        failure=failure,
        reason=reason,
    )


def _fault_of(stream: Stream) -> tuple[str | None, str]:
    if stream.error is not None:
        return "error event", stream.error
    if not stream.done:
        return "cut short", "the stream ended without [DONE]"
    if not stream.times:
        return "empty", "no event brought a token"
    return None, ""


def _pace(
    loop: asyncio.AbstractEventLoop,
    launch: Callable[[int], None],
    begin: float,
    due_s: Sequence[float],
    over: threading.Event,
) -> None:
    for index, due in enumerate(due_s):
        # In short sleeps, so that Ctrl+C does not wait for the next arrival.
        while (left := begin + due - perf_counter()) > 0 and not over.is_set():
            time.sleep(min(left, 0.1))
        if over.is_set():
            return
        loop.call_soon_threadsafe(launch, index)


def _probe(loop: asyncio.AbstractEventLoop, probe: Callable[[float], None], over: threading.Event) -> None:
    while not over.is_set():
        loop.call_soon_threadsafe(probe, perf_counter())
        time.sleep(PROBE_INTERVAL_S)
