"""`wllm bench compare`: the same prompts through several engines, each in its own process, turn by turn.

An engine that is not installed, fails or dies is a row that says so; the others go on. The report is saved after each
row.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from wllm.bench.contestants import Common, contestants
from wllm.bench.errors import BenchError
from wllm.bench.floor import Floor
from wllm.bench.lengths import Shape, chat_like, describe
from wllm.bench.machine import Machine
from wllm.bench.measure import DecodeStep, FirstToken, Measurement, Mix, Prefill, check_context
from wllm.bench.merge import ratios_table
from wllm.bench.plots import check_plots, plot
from wllm.bench.race import LIMIT_S, OutOfTime, Race
from wllm.bench.results import Report, Row, options_of
from wllm.bench.subject import chosen_model
from wllm.bench.workers import Worker
from wllm.console import complain, say
from wllm_runtime.checkpoint import open_checkpoint
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.settings import DTYPES

MOST_SEQS = 256  # requests that wLLM runs at a time, beside vLLM's 256 (1,024 on the largest GPUs)


def compare(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    check_plots(args.plot)
    report = Report("compare", options_of(args), Machine.here())
    say(str(report.machine))

    def enter(row: Row) -> None:
        report.add(row)
        complain(row.line())
        if args.json is not None:
            report.save(args.json)

    shapes = tuple(chat_like(args.num_requests, args.seed, args.longest))
    report.remarks.append(describe(shapes))
    with TemporaryDirectory(prefix="wllm-bench-") as name:
        folder = Path(name)
        if args.logs is not None:
            args.logs.mkdir(parents=True, exist_ok=True)
        facts = _facts(args, report.machine, folder)
        measurements = _measurements(args, shapes)
        check_context(measurements, facts.common.max_model_len)
        floor = Floor.of(facts.decoder, facts.itemsize, _bandwidth(facts.common.device, folder))
        report.remarks.append(str(floor))
        entries = contestants(args, facts.common)
        race = Race(
            model=f"{facts.name} {facts.common.dtype}",
            vocab_size=facts.decoder.vocab_size,
            seed=args.seed,
            repeats=args.repeats,
            floor=floor,
            logs=args.logs or folder,
            minutes=args.minutes,
            enter=enter,
            remark=report.remarks.append,
        )
        try:
            (race.run_together if args.together else race.run_in_turn)(entries, measurements, args.rounds)
        except OutOfTime:
            report.remarks.append(f"cut short after {args.minutes:g} minutes: rows are missing, or have fewer repeats")
    if args.json is not None:
        report.save(args.json)
    say("\n".join(["", ratios_table(report), "", *report.remarks]))
    plot(report, args.plot)
    return 0


@dataclass(frozen=True, slots=True)
class _Facts:
    name: str
    common: Common
    decoder: DecoderConfig
    itemsize: int


def _facts(args: argparse.Namespace, machine: Machine, folder: Path) -> _Facts:
    named = chosen_model(args, folder)
    device = "cuda" if machine.gpus and args.device != "cpu" else "cpu"
    if args.device == "cuda" and device == "cpu":
        raise BenchError("--device cuda was asked for, but nvidia-smi shows no GPU; install NVIDIA's driver")
    dtype = args.dtype if args.dtype != "auto" else {"cuda": "bfloat16", "cpu": "float32"}[device]
    dummy = named.dummy or args.load_format == "dummy"
    checkpoint = open_checkpoint(named.model, load_format="dummy", skip_tokenizer=True)
    decoder = DecoderConfig.from_pretrained(checkpoint.config)
    common = Common(
        model=named.model,
        device=device,
        dtype=dtype,
        dummy=dummy,
        max_model_len=min(args.max_model_len, decoder.max_position_embeddings),
        num_seqs=min(max(*args.batches, args.num_requests), MOST_SEQS),
    )
    return _Facts(named.name, common, decoder, DTYPES[dtype].itemsize)


def _bandwidth(device: str, folder: Path) -> float:
    # In a process of its own: this one must hold no GPU memory while others are measured.
    worker = Worker("bandwidth", sys.executable, {}, folder / "bandwidth.log", LIMIT_S)
    try:
        return float(worker.ask("bandwidth", device=device)["bytes_per_second"])
    finally:
        worker.close()


def _measurements(args: argparse.Namespace, shapes: tuple[Shape, ...]) -> list[Measurement]:
    count, length = args.prefill
    return [
        *(DecodeStep(batch, args.prompt_len, args.output_len) for batch in args.batches),
        FirstToken(args.first_token_len),
        Prefill(count, length),
        Mix(shapes, args.seed),
    ]
