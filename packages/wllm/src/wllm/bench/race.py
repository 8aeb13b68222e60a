"""`Race`: starts engines, measures them turn by turn, and enters each figure, or the error that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from wllm.bench.contestants import Contestant
from wllm.bench.errors import BenchError
from wllm.bench.floor import Floor
from wllm.bench.machine import gpu_memory_used
from wllm.bench.measure import FirstToken, Measurement, prompts_for
from wllm.bench.results import Row
from wllm.bench.workers import Worker, WorkerError

LIMIT_S = 1800.0  # of a start or an answer; some engines compile for many minutes
START = "start to ready"
MEMORY = "GPU memory taken"
GIB = 1 << 30

_FIRST_ANSWER_LEN = 16  # tokens of the very first prompt, which shows what an engine puts off until then


class OutOfTime(Exception):
    """The run has used its minutes."""


@dataclass(slots=True)
class _Running:
    entry: Contestant
    worker: Worker
    memory: int = 0
    dead: str | None = None
    warm: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Race:
    """One comparison. `enter` takes each row; after `minutes` nothing new is begun.

    `remark` hears what engines counted that explains their times, such as steps that ran without a graph.
    """

    model: str
    vocab_size: int
    seed: int
    repeats: int
    floor: Floor
    logs: Path
    minutes: float
    enter: Callable[[Row], None]
    remark: Callable[[str], None]
    _begin: float = field(default_factory=perf_counter)
    _memory_used: int = field(default_factory=gpu_memory_used)

    def run_together(self, entries: Sequence[Contestant], measurements: Sequence[Measurement], rounds: int) -> None:
        """All engines stay loaded and alternate within each row: A B A B."""
        running: list[_Running] = []
        try:
            for entry in entries:
                if (one := self._start(entry)) is not None:
                    running.append(one)
            for number in range(rounds):
                for measurement in measurements:
                    for one in running:
                        self._measure(one, measurement, number)
        finally:
            for one in running:
                self._close(one)

    def run_in_turn(self, entries: Sequence[Contestant], measurements: Sequence[Measurement], rounds: int) -> None:
        """One engine at a time, each started anew in every round: A B A B."""
        absent: set[str] = set()
        for number in range(rounds):
            for entry in entries:
                if entry.name in absent:
                    continue
                one = self._start(entry)
                if one is None:
                    absent.add(entry.name)
                    continue
                try:
                    for measurement in measurements:
                        self._measure(one, measurement, number)
                finally:
                    self._close(one)

    def _start(self, entry: Contestant) -> _Running | None:
        self._check_time()
        begin = perf_counter()
        worker = Worker(entry.name, entry.python, entry.environment, self.logs.resolve() / f"{entry.name}.log", LIMIT_S)
        try:
            answer = worker.ask("start", engine=entry.engine, model=entry.model, options=entry.options)
        except WorkerError as error:
            worker.close()
            self.enter(
                self._error(entry, START, "s", f"{error}" if error.kind == "absent" else f"{error.kind}: {error}")
            )
            return None
        seconds = perf_counter() - begin
        one = _Running(entry, worker)
        self.enter(Row(entry.name, START, "s", (seconds,), note=f"version {answer['version']}", model=self.model))
        self._see_memory(one)
        first = FirstToken(_FIRST_ANSWER_LEN)
        self._enter_samples(
            one,
            first,
            "first answer after start",
            lambda: [first.sample(worker, prompts_for(first.what, self.vocab_size, self.seed, 0, -1))],
        )
        return one

    def _measure(self, one: _Running, measurement: Measurement, number: int) -> None:
        self._check_time()
        if one.entry.only not in measurement.what:
            return
        if one.dead is not None:
            self.enter(self._error(one.entry, measurement.what, measurement.unit, one.dead))
            return

        def samples() -> list[float]:
            if measurement.what not in one.warm:
                measurement.warm_up(one.worker, prompts_for(measurement.what, self.vocab_size, self.seed, number, -1))
                one.warm.add(measurement.what)
            return [
                measurement.sample(
                    one.worker, prompts_for(measurement.what, self.vocab_size, self.seed, number, sample)
                )
                for sample in range(measurement.samples_in_a_round(self.repeats))
            ]

        self._enter_samples(one, measurement, measurement.what, samples)

    def _enter_samples(
        self, one: _Running, measurement: Measurement, what: str, samples: Callable[[], Sequence[float]]
    ) -> None:
        try:
            row = Row(
                one.entry.name,
                what,
                measurement.unit,
                tuple(samples()),
                measurement.better,
                floor=self.floor.under(measurement),
                model=self.model,
            )
        except WorkerError as error:
            if error.kind == "died":
                one.dead = f"died: {error}"
            row = self._error(one.entry, what, measurement.unit, f"{error.kind}: {error}")
        except BenchError as error:
            row = self._error(one.entry, what, measurement.unit, str(error))
        self._see_memory(one)
        self.enter(row)

    def _error(self, entry: Contestant, what: str, unit: str, error: str) -> Row:
        return Row(entry.name, what, unit, error=error, model=self.model)

    def _see_memory(self, one: _Running) -> None:
        # What the GPU holds more than before its turn: engines keep what they took, so the sum of it is the peak.
        before, self._memory_used = self._memory_used, gpu_memory_used()
        one.memory += self._memory_used - before

    def _close(self, one: _Running) -> None:
        if one.memory > 0 and one.dead is None:
            self.enter(Row(one.entry.name, MEMORY, "GiB", (one.memory / GIB,), model=self.model))
        counted = {name: count for name, count in one.worker.close().items() if count}
        if counted:
            self.remark(f"{one.entry.name}: " + ", ".join(f"{n:,} {name}" for name, n in counted.items()))
        self._memory_used = gpu_memory_used()

    def _check_time(self) -> None:
        if perf_counter() - self._begin > 60 * self.minutes:
            raise OutOfTime
