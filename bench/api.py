"""The API process alone: requests a second, times, and processor time a token, around an engine without a model.

    python bench/api.py                      1, 32 and 256 streams; steps of the engine at once, and every 10 ms
    python bench/api.py --streams 64 --json api.json

As many chats as there are streams run at any time, one after the other, with the same prompt and number of tokens. The
client, the API process and the scripted engine are three processes and share the machine. A step of 0 ms is the most
that the API process can take: where it is slower than the engine, an event brings several tokens. Needs psutil.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from _common import print_table
from _scripted_server import Scripted

from wllm.bench.serve_http import Server
from wllm.bench.serve_load import LoadRun, run_load
from wllm.bench.serve_report import Goals, ServeReport

PATH = "/v1/chat/completions"
PROMPT = "Tell me about the weather of the last hundred years. " * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measurement; times in ms, `cpu_us` is that of the API process for each token."""

    step_ms: float
    streams: int
    requests: int
    failed: int
    requests_per_s: float
    tokens_per_s: float
    tokens_per_event: float
    cpu_us: float
    ttft_p50: float
    ttft_p99: float
    itl_p99: float
    e2e_p50: float
    e2e_p99: float
    client_cpu_share: float


def measure(step_ms: float, streams: int, num_requests: int, num_tokens: int) -> Row:
    """Send `num_requests`, `streams` at a time, to a fresh server."""
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with Scripted(step_ms, streams) as server:
        target = Server.at(server.url)
        request = target.request("POST", PATH, body)

        def load(count: int) -> LoadRun:
            return asyncio.run(
                run_load(target, [request] * count, [0.0] * count, timeout_s=300, max_concurrency=streams)
            )

        load(streams)  # imports, caches, connections
        before = server.cpu_s()
        run = load(num_requests)
        cpu_s = server.cpu_s() - before
    report = ServeReport.of(run, Goals())
    if not report.completed:
        raise SystemExit(f"No request was answered: {report.failures}. Start the server alone to see why.")
    events = sum(len(outcome.times) for outcome in run.outcomes)
    ttft, e2e = report.ttft.percentiles, report.e2e.percentiles
    return Row(
        step_ms=step_ms,
        streams=streams,
        requests=report.requests,
        failed=report.requests - report.completed,
        requests_per_s=round(report.a_second(report.completed), 1),
        tokens_per_s=round(report.a_second(report.output_tokens)),
        tokens_per_event=round(report.output_tokens / max(events, 1), 2),
        cpu_us=round(cpu_s / max(report.output_tokens, 1) * 1e6, 1),
        ttft_p50=round(ttft[50], 2),
        ttft_p99=round(ttft[99], 2),
        itl_p99=round(report.itl.percentiles.get(99, 0.0), 2),
        e2e_p50=round(e2e[50], 2),
        e2e_p99=round(e2e[99], 2),
        client_cpu_share=round(report.cpu_share, 2),
    )


def main() -> int:
    """Measure and print; exit code 1 when a request failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256], help="(default: 1 32 256)")
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0, 10], help="of the engine (default: 0 10)")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: 64)")
    parser.add_argument(
        "--rounds", type=int, default=8, help="requests of each stream, at least 64 in all (default: 8)"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    rows = [
        measure(step_ms, streams, max(streams * args.rounds, 64), args.tokens)
        for step_ms in args.step_ms
        for streams in args.streams
    ]
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    print_table(
        f"API process, streamed chats of {args.tokens} tokens; times in ms; {system}",
        ("step ms", "streams", "requests/s", "tokens/s", "tokens/event", "API CPU us/token",
         "TTFT p50", "TTFT p99", "ITL p99", "E2E p50", "E2E p99", "client CPU"),
        [
            (row.step_ms, row.streams, row.requests_per_s, row.tokens_per_s, row.tokens_per_event, row.cpu_us,
             row.ttft_p50, row.ttft_p99, row.itl_p99, row.e2e_p50, row.e2e_p99, f"{row.client_cpu_share:.0%}")
            for row in rows
        ],
    )  # fmt: skip
    if args.json is not None:
        document = {"system": system, "tokens": args.tokens, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
