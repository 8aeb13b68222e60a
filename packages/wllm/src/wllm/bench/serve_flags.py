"""Flags of `wllm bench serve`. Standard library only."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from wllm.bench.flag_types import count, positive


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags of the command."""
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: http://127.0.0.1:8000)")
    parser.add_argument("--model", metavar="NAME", help="model to ask for (default: the first that the server lists)")
    parser.add_argument("--api-key", metavar="KEY", help="key that the server wants (default: none)")
    group = parser.add_argument_group("load")
    group.add_argument(
        "--rate",
        type=_rate,
        default=math.inf,
        metavar="N",
        help="requests a second, arriving at random (Poisson); 'inf' sends all at once (default: inf)",
    )
    group.add_argument("--num-requests", type=count, default=100, metavar="N", help="requests (default: 100)")
    group.add_argument("--max-concurrency", type=count, metavar="N", help="most requests open at a time (default: all)")
    group.add_argument(
        "--endpoint",
        choices=("completions", "chat"),
        default="completions",
        help="completions send token ids, chat sends words (default: completions)",
    )
    group.add_argument(
        "--prompt-tokens", type=count, metavar="N", help="length of every prompt (default: lengths as in chats)"
    )
    group.add_argument(
        "--output-tokens", type=count, metavar="N", help="length of every answer (default: lengths as in chats)"
    )
    group.add_argument(
        "--vocab-size",
        type=count,
        default=20_000,
        metavar="N",
        help="token ids of prompts lie below this (default: 20000, which most models have)",
    )
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for answers of the full length (default: on); turn it off for a server that does not know it",
    )
    group.add_argument(
        "--extra-body", type=_object, default={}, metavar="JSON", help="more fields of every request (default: none)"
    )
    group.add_argument("--timeout-s", type=positive, default=600.0, metavar="S", help="of a request (default: 600)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of arrivals, lengths and prompts (default: 0)")
    goals = parser.add_argument_group("goodput", "requests that reach all given goals are counted as good")
    goals.add_argument("--slo-ttft-ms", type=positive, metavar="MS", help="longest time to the first token")
    goals.add_argument("--slo-tpot-ms", type=positive, metavar="MS", help="longest time per token after the first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of requests a second, such as 4, or inf")
    return rate


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text} is not a JSON object, such as {{"top_k": 1}}')
    return value
