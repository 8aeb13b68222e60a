"""`wllm bench serve`: load on an OpenAI server at a URL, and how it bore it. Loads no torch and no model."""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Iterator
from typing import Any

from wllm.bench.errors import BenchError
from wllm.bench.lengths import Shape, chat_like, describe
from wllm.bench.machine import Machine
from wllm.bench.results import Better, Report, Row, table
from wllm.bench.serve_http import ConnectionLost, Server, exchange
from wllm.bench.serve_load import poisson_arrivals, run_load
from wllm.bench.serve_report import Goals, ServeReport, Spread
from wllm.bench.serve_requests import PATHS, bodies
from wllm.console import complain, say
from wllm_runtime.progress import progress_bar


def serve(args: argparse.Namespace) -> int:
    """Run the load that the flags describe; the exit code is 1 when a request failed."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    server = Server.at(args.url, args.api_key)
    engine, model = await _identity(server, args.model)
    shapes = _shapes(args)
    made = bodies(
        args.endpoint,
        model,
        # One more than counts: it finds out whether the server takes such requests, and pays for what is done once.
        [*shapes, Shape(min(shapes[0].prompt, 32), min(shapes[0].output, 8))],
        vocab_size=args.vocab_size,
        ignore_eos=args.ignore_eos,
        extra=args.extra_body,
        seed=args.seed,
    )
    requests = [server.request("POST", PATHS[args.endpoint], body) for body in made]
    await _try_out(server, requests.pop(), args.timeout_s)
    say(f"{engine} ({model}) at {args.url}: {_load_of(args)}")
    if None in (args.prompt_tokens, args.output_tokens):
        say(describe(shapes))
    due = poisson_arrivals(len(requests), args.rate, args.seed)
    with progress_bar("requests", total=len(requests), unit="req") as bar:
        load = await run_load(
            server,
            requests,
            due,
            timeout_s=args.timeout_s,
            max_concurrency=args.max_concurrency,
            on_end=lambda outcome: bar.update() and None,
        )
    figures = ServeReport.of(load, Goals(args.slo_ttft_ms, args.slo_tpot_ms))
    report = Report("serve", _options(args, model), Machine.here(), list(_rows(figures, engine, model, _load_of(args))))
    _print(figures)
    if args.json is not None:
        report.save(args.json)
        say(f"written to {args.json}")
    for outcome in load.outcomes:
        if outcome.failure is not None:
            complain(f"the first failure, {outcome.failure}: {outcome.reason}")
            return 1
    return 0


async def _identity(server: Server, model: str | None) -> tuple[str, str]:
    # (who serves, the model's name): every server says both in its list of models.
    try:
        answer = await exchange(server, server.request("GET", "/v1/models"))
    except (OSError, ConnectionLost) as error:
        raise BenchError(
            f"nothing answers at {server.host}:{server.port} ({error}); start the server, or give its --url"
        ) from None
    if answer.status != 200:
        raise BenchError(
            f"the server answers /v1/models with {answer.status}: {bytes(answer.body[:300]).decode(errors='replace')}; "
            "give its --api-key, or another --url"
        )
    listed: Any = answer.json().get("data") or []
    owners = {entry.get("id"): str(entry.get("owned_by") or "server") for entry in listed}
    if model is None and not owners:
        raise BenchError("the server lists no model at /v1/models; name one with --model")
    name = model or next(iter(owners))
    return owners.get(name, "server"), name


async def _try_out(server: Server, request: bytes, timeout_s: float) -> None:
    load = await run_load(server, [request], [0.0], timeout_s=timeout_s)
    outcome = load.outcomes[0]
    if outcome.failure is not None:
        if outcome.failure == "http 503":
            raise BenchError(f"the server is not ready (http 503): {outcome.reason}; wait until /health answers 200")
        raise BenchError(
            f"the server did not answer a first request ({outcome.failure}): {outcome.reason}; "
            "change the request with --model, --endpoint, --vocab-size, --no-ignore-eos or --extra-body"
        )


def _shapes(args: argparse.Namespace) -> list[Shape]:
    shapes = chat_like(args.num_requests, args.seed)
    return [Shape(args.prompt_tokens or shape.prompt, args.output_tokens or shape.output) for shape in shapes]


def _load_of(args: argparse.Namespace) -> str:
    # All that the figures depend on: files of another load must not be divided by these.
    lengths = [
        f"chat-like lengths {way}" if tokens is None else f"{tokens} tokens {way}"
        for tokens, way in ((args.prompt_tokens, "in"), (args.output_tokens, "out"))
    ]
    arrivals = "all at once" if math.isinf(args.rate) else f"{args.rate:g} a second"
    limit = [] if args.max_concurrency is None else [f"at most {args.max_concurrency} open"]
    return ", ".join((f"{args.num_requests} {args.endpoint}", arrivals, *lengths, *limit))


def _options(args: argparse.Namespace, model: str) -> dict[str, Any]:
    names = ("rate", "num_requests", "max_concurrency", "endpoint", "prompt_tokens", "output_tokens", "vocab_size")
    options = {name: getattr(args, name) for name in (*names, "ignore_eos", "seed", "slo_ttft_ms", "slo_tpot_ms")}
    # JSON has no infinity.
    return {**options, "rate": str(args.rate), "model": model, "extra_body": args.extra_body}


def _rows(figures: ServeReport, engine: str, model: str, load: str) -> Iterator[Row]:
    def row(
        what: str, unit: str, value: float | None, better: Better = "lower", note: str = "", error: str = ""
    ) -> Row:
        samples = () if value is None else (value,)
        # The load in the model's place: the table has a part for each.
        return Row(engine, what, unit, samples, better, note=note, error=error or None, model=f"{model}: {load}")

    failures = ", ".join(f"{count} {kind}" for kind, count in figures.failures.items())
    if not figures.completed:
        yield row("whole answers", "requests", None, "higher", error=f"all failed: {failures}")
        return
    yield row("whole answers", "requests", figures.completed, "higher", note=failures)
    for what, count in (
        ("requests", figures.completed),
        ("output tokens", figures.output_tokens),
        ("all tokens", figures.prompt_tokens + figures.output_tokens),
    ):
        yield row(f"{what} per second", "1/s", figures.a_second(count), "higher")
    if figures.good:
        yield row("goodput", "requests/s", figures.a_second(figures.good), "higher")
    elif figures.good == 0:
        yield row("goodput", "requests/s", None, "higher", error="no request reached the goals")
    for name, spread in _spreads(figures):
        yield from (row(f"{name} p{percent}", "ms", value) for percent, value in spread.percentiles.items() if value)
    yield row("the client's lag p90", "ms", figures.lag.percentiles[90], note="not the server's")


def _spreads(figures: ServeReport) -> tuple[tuple[str, Spread], ...]:
    return ("TTFT", figures.ttft), ("TPOT", figures.tpot), ("ITL", figures.itl), ("E2E", figures.e2e)


def _print(figures: ServeReport) -> None:
    failed = ", ".join(f"{count} {kind}" for kind, count in figures.failures.items()) or "none"
    good = "" if figures.good is None else f", good {figures.a_second(figures.good):.2f}"
    say(
        f"\n{figures.completed} of {figures.requests} requests answered in {figures.duration_s:.2f} s; "
        f"failures: {failed}\n"
        f"requests/s {figures.a_second(figures.completed):.2f}{good}; output tokens/s "
        f"{figures.a_second(figures.output_tokens):,.0f}; all tokens/s "
        f"{figures.a_second(figures.prompt_tokens + figures.output_tokens):,.0f}\n"
    )
    rows = [
        (name, f"{spread.mean or 0:.2f}", *(f"{value:.2f}" for value in spread.percentiles.values()))
        for name, spread in _spreads(figures)
        if spread.count
    ]
    say(table(("ms", "mean", "p50", "p90", "p99"), rows))
    say(
        f"\nclient: requests sent {figures.late.percentiles.get(99, 0.0):.2f} ms late (p99), event loop "
        f"{figures.lag.percentiles.get(90, 0.0):.2f} ms behind (p90), {figures.cpu_share:.0%} of a core"
    )
    for warning in figures.warnings():
        complain(f"warning: {warning}")
