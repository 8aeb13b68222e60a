"""`wllm bench ablate`: what each of the engine's techniques is worth. One is off at a time; each engine starts anew."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from wllm.bench.driver import Driver
from wllm.bench.errors import BenchError
from wllm.bench.lengths import chat_like, describe
from wllm.bench.machine import Machine
from wllm.bench.measure import DecodeStep, Measurement, Mix, Sampled, check_context, take_samples
from wllm.bench.merge import ratios_table
from wllm.bench.plots import check_plots, plot
from wllm.bench.results import Better, Report, Row, options_of
from wllm.bench.subject import Subject, subject_of
from wllm.bench.techniques import Pause, SecondFirstToken, techniques
from wllm.console import complain, say

ALL_ON = "all on"
_STREAMS = 8


class _Measurement(Sampled[Driver], Protocol):
    @property
    def unit(self) -> str: ...
    @property
    def better(self) -> Better: ...


def ablate(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    check_plots(args.plot)
    shapes = tuple(chat_like(args.num_requests, args.seed, args.longest))
    with subject_of(args, num_seqs=max(*args.batches, 64)) as subject:
        report = Report("ablate", options_of(args), Machine.here())
        say(str(report.machine))
        with _driver(subject) as driver:
            info = driver.engine.model_info
            long_prompt = min(args.long_prompt, info.max_model_len - 1)
            usual: list[Measurement] = [
                *(DecodeStep(batch, args.prompt_len, args.output_len) for batch in args.batches),
                Mix(shapes, args.seed),
            ]
            check_context(usual, info.max_model_len)
            measurements: list[_Measurement] = [
                *usual,
                SecondFirstToken(min(args.first_token_len, long_prompt)),
                Pause(_STREAMS, long_prompt),
            ]
            _measure(args, report, subject, driver, ALL_ON, measurements)
        # The same KV cache for all, however much memory each leaves.
        subject.settings["num_kv_blocks"] = info.num_kv_blocks
        subject.settings["max_model_len"] = info.max_model_len
        offs = techniques(
            device=info.device,
            num_blocks=info.num_kv_blocks,
            block_size=info.block_size,
            max_model_len=info.max_model_len,
            long_prompt=long_prompt,
        )
        for off in offs:
            with _driver(subject, **off.settings) as driver:
                shown = [one for one in measurements if isinstance(one, Mix) or not off.only_mix]
                _measure(args, report, subject, driver, f"no {off.name}", shown)
    report.remarks += [*(f"no {off.name}: {off.how}." for off in offs), describe(shapes)]
    if args.json is not None:
        report.save(args.json)
    say("\n".join(["", ratios_table(report), "", *report.remarks]))
    plot(report, args.plot)
    return 0


@contextmanager
def _driver(subject: Subject, **changes: object) -> Iterator[Driver]:
    driver = Driver(subject.model, {**subject.settings, **changes})
    try:
        yield driver
    finally:
        driver.close()


def _measure(
    args: argparse.Namespace,
    report: Report,
    subject: Subject,
    driver: Driver,
    name: str,
    measurements: Sequence[_Measurement],
) -> None:
    info = driver.engine.model_info
    for measurement in measurements:
        samples = take_samples(measurement, driver, info.vocab_size, args.seed, args.repeats)
        row = Row(
            name,
            measurement.what,
            measurement.unit,
            samples,
            measurement.better,
            model=f"{subject.name} {info.dtype}",
        )
        report.add(row)
        complain(row.line())
        if args.json is not None:
            report.save(args.json)
    if info.device.startswith("cuda"):
        _check_graphs(driver, name, wanted="CUDA graphs" not in name)


def _check_graphs(driver: Driver, name: str, *, wanted: bool) -> None:
    replays = driver.engine.stats().graph_replays_total
    if (replays > 0) != wanted:
        raise BenchError(
            f"the engine {name!r} replayed {replays} graphs, which is not what the row says; "
            "see the engine's warnings: a graph that cannot be captured runs eagerly"
        )
