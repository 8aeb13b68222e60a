"""`Session`: a benchmark in this process: a loaded engine, its report, and what is shown while it runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wllm.bench.floor import Floor
from wllm.bench.machine import Machine
from wllm.bench.measure import Measurement, check_context, take_samples
from wllm.bench.plots import check_plots, plot
from wllm.bench.results import Report, Row, options_of, rows_table
from wllm.bench.subject import Subject
from wllm.bench.worker.bandwidth import copy_bandwidth
from wllm.bench.worker.wllm_engine import WllmEngine
from wllm.console import complain, say


class Session:
    """Measures rows of one subject; the report is saved after each."""

    def __init__(self, command: str, args: argparse.Namespace, subject: Subject) -> None:
        check_plots(args.plot)
        self.subject = subject
        self.report = Report(command, options_of(args), Machine.here())
        self._args = args
        say(str(self.report.machine))

    @contextmanager
    def engine(self, **changes: Any) -> Iterator[WllmEngine]:
        """The subject, loaded with some settings changed."""
        engine = WllmEngine(self.subject.model, {**self.subject.settings, **changes})
        try:
            yield engine
        finally:
            counted = engine.close()
            self.report.remarks.append("wllm: " + ", ".join(f"{n:,} {name}" for name, n in counted.items() if n))

    def measure(
        self, engine: WllmEngine, measurements: Sequence[Measurement], *, name: str = "wllm", floor: Floor | None = None
    ) -> None:
        """Warm up and take `--repeats` samples of each."""
        info = engine.llm.model_info
        check_context(measurements, info.max_model_len)
        for measurement in measurements:
            complain(f"measuring {measurement.what}")
            before = engine.llm.stats().preemptions_total
            samples = take_samples(measurement, engine, info.vocab_size, self._args.seed, self._args.repeats)
            preemptions = engine.llm.stats().preemptions_total - before
            self.add(
                Row(
                    name,
                    measurement.what,
                    measurement.unit,
                    samples,
                    measurement.better,
                    floor=None if floor is None else floor.under(measurement),
                    note=f"{preemptions} preemptions: the KV cache is small for this" if preemptions else "",
                    model=f"{self.subject.name} {info.dtype}",
                )
            )

    def add(self, row: Row) -> None:
        """Enter a row, show it and save the report."""
        self.report.add(row)
        complain(row.line())
        if self._args.json is not None:
            self.report.save(self._args.json)

    def finish(self, *remarks: str) -> int:
        """Show the table and write the plots; the exit code."""
        self.report.remarks += remarks
        if self._args.json is not None:
            self.report.save(self._args.json)
        say("\n".join(["", rows_table(self.report), "", *self.report.remarks]))
        plot(self.report, self._args.plot)
        return 0


def floor_of(subject: Subject, device: str) -> Floor:
    """The subject's floor on this machine; measured before it is loaded, while the memory is free."""
    from wllm_runtime import EngineConfig
    from wllm_runtime.checkpoint import open_checkpoint
    from wllm_runtime.models.decoder_config import DecoderConfig
    from wllm_runtime.settings import Settings, resolve_device, resolve_dtype

    config = EngineConfig(model=subject.model, device=device, dtype=subject.settings["dtype"])  # type: ignore[arg-type]
    checkpoint = open_checkpoint(
        subject.model, revision=subject.settings["revision"], load_format="dummy", skip_tokenizer=True
    )
    where = resolve_device(config, Settings())
    dtype = resolve_dtype(config, checkpoint.config.dtype, where, Settings())
    bandwidth = copy_bandwidth(where.type)
    return Floor.of(DecoderConfig.from_pretrained(checkpoint.config), dtype.itemsize, bandwidth)
