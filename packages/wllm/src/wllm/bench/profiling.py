"""`wllm bench profile`: where a decode step and a prefill step go: phases of the host, kernels, idle GPU, driver calls.

The host's phases are timed in a run of their own, since the profiler slows the host.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from wllm.bench.driver import Driver
from wllm.bench.lengths import PromptMaker
from wllm.bench.machine import Machine
from wllm.bench.phases import PHASES, phases_of
from wllm.bench.results import Report, Row, options_of, table
from wllm.bench.scenes import DecodeScene, PrefillScene, Scene
from wllm.bench.subject import subject_of
from wllm.bench.trace import Span, driver_calls, idle_share, kernel_times, operator_times, spans_of
from wllm.console import say

_NAME_LEN = 80  # of a kernel in the table; the JSON has the whole name


def profile(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    with subject_of(args, num_seqs=args.batch) as subject:
        report = Report("profile", options_of(args), Machine.here())
        say(str(report.machine))
        driver = Driver(subject.model, subject.settings)
        try:
            info = driver.engine.model_info
            prompts = PromptMaker(info.vocab_size, args.seed)
            scenes: list[Scene] = [
                DecodeScene(driver, prompts, args.batch, args.prompt_len, args.steps),
                PrefillScene(driver, prompts, args.prefill_len),
            ]
            for scene in scenes:
                look = Look(driver, scene, report, f"{subject.name} {info.dtype}")
                with _stage(scene):
                    scene.act()  # warm
                look.at_phases()
                look.at_kernels(args.top, on_gpu=info.device.startswith("cuda"))
                if args.json is not None:
                    report.save(args.json)
        finally:
            driver.close()
    return 0


class Look:
    """Looks at one scene: each look plays it once, prints a table and enters its rows, all per step."""

    def __init__(self, driver: Driver, scene: Scene, report: Report, model: str) -> None:
        self._driver, self._scene, self._report, self._model = driver, scene, report, model

    def at_phases(self) -> None:
        """The host's milliseconds by phase; what is left of the whole is the loop's own and the events'."""
        with phases_of(self._driver.engine) as clock, _stage(self._scene):
            clock.clear()
            begin, steps = perf_counter(), self._steps()
            self._scene.act()
            whole, steps = perf_counter() - begin, self._steps() - steps
            seconds = {phase: sum(clock.seconds[phase]) for phase in PHASES}
        parts = {"whole": whole, **seconds, "rest of the loop": whole - sum(seconds.values())}
        for name, part in parts.items():
            self._enter(f"host, {name}", "ms", 1e3 * part / steps)
        rows = [(name, f"{1e3 * part / steps:.3f}", f"{part / whole:.0%}") for name, part in parts.items()]
        say(f"\n{self._scene.what}: {steps} steps\n\n{table(('host', 'ms a step', 'share'), rows)}")

    def at_kernels(self, top: int, *, on_gpu: bool) -> None:
        """What ran, the longest first; on a GPU also how long it idled and what the driver was asked for."""
        spans, steps = self._trace(on_gpu)
        times = kernel_times(spans) if on_gpu else operator_times(spans)
        whole = sum(time.total_us for time in times)
        rows = [
            (
                time.name[:_NAME_LEN],
                f"{time.total_us / steps:.1f}",
                f"{time.total_us / whole:.1%}",
                f"{time.runs / steps:g}",
            )
            for time in times[:top]
        ]
        for time in times:
            self._enter(time.name, "us", time.total_us / steps)
        kind, runs = "kernel" if on_gpu else "operator", sum(time.runs for time in times) / steps
        say(f"\n{table((kind, 'us a step', 'share', 'times a step'), rows)}")
        say(f"\n{whole / steps:,.1f} us a step in {len(times)} {kind}s, {runs:g} a step")
        if on_gpu:
            self._at_gpu(spans, steps)

    def _at_gpu(self, spans: Sequence[Span], steps: int) -> None:
        idle, calls = idle_share(spans), driver_calls(spans)
        rows = [(name, f"{count / steps:.2f}") for name, count in calls.most_common()]
        say("the GPU ran nothing" if idle is None else f"the GPU idled for {idle:.1%} of the time, under the profiler")
        say(f"\n{table(('driver call', 'a step'), rows)}")
        for name, count in calls.items():
            self._enter(name, "calls", count / steps)

    def _trace(self, on_gpu: bool) -> tuple[list[Span], int]:
        import torch
        from torch.profiler import ProfilerActivity
        from torch.profiler import profile as profiler

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        # On a CPU steps run in a thread of their own, which is older than the profiler.
        threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=not on_gpu)
        with _stage(self._scene):
            steps = self._steps()
            with profiler(activities=activities, experimental_config=threads) as seen:
                self._scene.act()
            steps = self._steps() - steps
        return spans_of(seen), steps

    def _steps(self) -> int:
        return self._driver.engine.stats().steps_total

    def _enter(self, name: str, unit: str, value: float) -> None:
        if value > 0:  # a phase may take less than its clock shows
            self._report.add(Row("wllm", f"{self._scene.what}: {name}", unit, (value,), model=self._model))


@contextmanager
def _stage(scene: Scene) -> Iterator[None]:
    scene.prepare()
    try:
        yield
    finally:
        scene.clear_up()
