"""`EngineLoop`: the step loop over a scheduler and a runner; it implements the `Engine` protocol.

Owns the steps in flight: it plans and launches the next before it waits for the oldest, so that the device has work
while the host thinks. Rare events (preemption, cache reset) wait until nothing is in flight. Never polls, but for a
grammar while there is nothing else to do; starts no thread, knows no text. An error of the runner itself goes through
to the caller; from then on, and after `close`, `submit` and `step` raise `EngineClosed`.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

from wllm_sched.chunking import Chunk
from wllm_sched.errors import EngineClosed
from wllm_sched.messages import Abort, EngineStats, Submit, TokenEvent
from wllm_sched.plan import Runner, StepHandle, StepPlan
from wllm_sched.scheduler import Scheduler

_GRAMMAR_WAIT_S = 0.005


class EngineLoop:
    """Serves requests with at most `depth` steps in flight; 2 hides the host's work, 1 is for debugging."""

    def __init__(self, scheduler: Scheduler, runner: Runner, *, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"The engine needs at least one step in flight, but depth is {depth}. Give 1 or 2.")
        self.scheduler = scheduler
        self.runner = runner
        self.depth = depth
        self._in_flight: deque[tuple[StepPlan, StepHandle, float]] = deque()
        self._last_finish = 0.0
        self._closed = False
        self._failed = False

    def submit(self, request: Submit) -> None:
        """Queue a request; raises `RequestRefused` for one that can never run."""
        self._refuse_if_over()
        self.scheduler.submit(request)

    def abort(self, abort: Abort) -> None:
        """End a request early; its samples still get their final event ("abort") from a later `step`."""
        self.scheduler.abort(abort)

    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return self.scheduler.has_work

    def step(self) -> list[TokenEvent]:
        """Plan and launch one step, commit the oldest when the pipeline is full; the events of what was committed."""
        self._refuse_if_over()
        if len(self._in_flight) >= self.depth:  # a wait was interrupted
            self._commit_oldest()
        plan = self.scheduler.plan()
        if plan is not None:
            self._launch(plan)
        if self._in_flight and (plan is None or len(self._in_flight) >= self.depth):
            self._commit_oldest()
        elif plan is None:
            self._settle_swaps()
            # Short, so that a request that needs no grammar is taken in between.
            self.scheduler.wait_for_grammars(_GRAMMAR_WAIT_S)
        return self.scheduler.take_events()

    def drain(self) -> None:
        """Commit everything in flight, swaps too; the events come with the next `step`."""
        while self._in_flight:
            self._commit_oldest()
        self._settle_swaps()

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; waits for what is in flight."""
        self.drain()
        self.scheduler.reset_prefix_cache()

    def stats(self) -> EngineStats:
        """Counters now."""
        return self.scheduler.stats()

    def close(self) -> None:
        """Finish what is in flight and take no more requests; whoever made the runner releases it."""
        self._closed = True
        if not self._failed:
            self.drain()

    def _refuse_if_over(self) -> None:
        if self._closed or self._failed:
            reason = "was closed" if self._closed else "failed in an earlier step"
            raise EngineClosed(f"The engine {reason} and takes no more work. Start a new engine.")

    def _launch(self, plan: StepPlan) -> None:
        assert len(self._in_flight) < self.depth, f"I8: {len(self._in_flight)} steps in flight already"
        launched = perf_counter()
        try:
            handle = self.runner.launch(plan)
        except Exception:
            self._failed = True
            raise
        self._in_flight.append((plan, handle, launched))

    def _settle_swaps(self) -> None:
        host = self.scheduler.pool.host
        if host is not None and host.num_under_way:
            try:
                num_done = self.runner.swap(host.take(host.num_issued))
            except Exception:
                self._failed = True
                raise
            host.finish(num_done)

    def _commit_oldest(self) -> None:
        # The step leaves the line only after its wait, so that an interrupted wait (Ctrl+C) can be repeated.
        plan, handle, launched = self._in_flight[0]
        try:
            result = handle.wait()
        except Exception:
            self._failed = True
            raise
        self._in_flight.popleft()
        finished = perf_counter()
        # The device begins a step when it is launched or when the step before is done, whichever is later.
        elapsed_ms = 1000.0 * (finished - max(launched, self._last_finish))
        self._last_finish = finished
        chunks = [Chunk(row.start, row.count) for row in plan.rows[plan.num_decode_rows :]]
        self.scheduler.chunks.observe(chunks, plan.num_decode_rows, elapsed_ms)
        self.scheduler.commit(plan, result)
