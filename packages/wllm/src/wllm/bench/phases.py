"""Host time of a step's phases: plan, launch, wait, commit, and the rest of the loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from wllm_runtime.engine import ModelEngine
    from wllm_sched import Scheduler
    from wllm_sched.plan import Runner, StepHandle, StepPlan, StepResult

T = TypeVar("T")
PHASES = ("plan", "launch", "wait", "commit")


class PhaseClock:
    """Seconds of each call of each phase, in order."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def timed(self, phase: str, work: Callable[..., T], *args: Any) -> T:
        """Call and note how long it took, whether or not it raised."""
        begin = self._clock()
        try:
            return work(*args)
        finally:
            self.seconds[phase].append(self._clock() - begin)

    def clear(self) -> None:
        """Forget what was noted."""
        self.seconds.clear()


class _Scheduler:
    def __init__(self, inner: Scheduler, clock: PhaseClock) -> None:
        self._inner, self._clock = inner, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def plan(self) -> StepPlan | None:
        return self._clock.timed("plan", self._inner.plan)

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        self._clock.timed("commit", self._inner.commit, plan, result)


class _Handle:
    def __init__(self, inner: StepHandle, clock: PhaseClock) -> None:
        self._inner, self._clock = inner, clock

    def wait(self) -> StepResult:
        return self._clock.timed("wait", self._inner.wait)


class _Runner:
    def __init__(self, inner: Runner, clock: PhaseClock) -> None:
        self._inner, self._clock = inner, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, plan: StepPlan) -> _Handle:
        return _Handle(self._clock.timed("launch", self._inner.launch, plan), self._clock)


@contextmanager
def phases_of(engine: ModelEngine) -> Iterator[PhaseClock]:
    """Time the phases of the engine's steps; afterwards the engine is as it was. Nothing may be in flight."""
    scheduler, runner, clock = engine.scheduler, engine.runner, PhaseClock()
    engine.scheduler = cast("Scheduler", _Scheduler(scheduler, clock))
    engine.runner = cast("Runner", _Runner(runner, clock))
    try:
        yield clock
    finally:
        engine.scheduler, engine.runner = scheduler, runner
