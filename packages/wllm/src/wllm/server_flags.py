"""Command-line flags of `wllm serve` beside the engine's. Standard library only."""

from __future__ import annotations

import argparse
from pathlib import Path

from wllm.bench.flag_types import count


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the server, in groups."""
    _add_server(parser.add_argument_group("server"))
    _add_several(parser.add_argument_group("several models, memory"))
    _add_access(parser.add_argument_group("who may connect"))
    _add_text(parser.add_argument_group("tools and reasoning"))
    _add_watching(parser.add_argument_group("log and metrics"))


def _add_server(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    group.add_argument("--port", type=int, default=8000, help="port to listen on (default: 8000)")
    group.add_argument(
        "--ollama-port",
        type=int,
        metavar="PORT",
        help="second port, for programs that look for Ollama: they try 11434 (default: none)",
    )
    group.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="name of the model in the API; repeatable (default: from MODEL)",
    )
    group.add_argument(
        "--max-waiting",
        type=count,
        default=256,
        metavar="N",
        help="requests that may wait for their first token; more get a 503 (default: 256)",
    )
    group.add_argument(
        "--max-body-mib",
        type=count,
        default=32,
        metavar="N",
        help="largest body of a request in MiB; longer ones get a 413 (default: 32)",
    )


def _add_several(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--models-file",
        type=Path,
        metavar="FILE",
        help="TOML file with a table for each model: its name, its model, flags of its own",
    )
    group.add_argument(
        "--max-loaded-models",
        type=count,
        default=1,
        metavar="N",
        help="models that may be loaded at a time; the next takes the place of the one unused for longest (default: 1)",
    )
    group.add_argument(
        "--keep-alive",
        type=_seconds,
        metavar="TIME",
        help="unload a model that nobody asked for in this time, such as 10m; a request loads it again "
        "(default: models stay)",
    )


def _seconds(text: str) -> float:
    from wllm_api.durations import seconds_of

    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} {error}") from None


def _add_access(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="key that clients must send; repeatable (default: the environment variable WLLM_API_KEY, else none)",
    )
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file with a key on each line; # begins a comment"
    )
    group.add_argument("--no-auth", action="store_true", help="allow another --host than this machine without a key")
    group.add_argument(
        "--rate-limit",
        type=count,
        metavar="N",
        help="requests that a key may send in a minute, without keys a client's address (default: no limit)",
    )
    group.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="URL",
        help="web page origin to allow beside this machine's; repeatable",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name to answer to beside this machine's; repeatable",
    )


def _add_text(group: argparse._ArgumentGroup) -> None:
    # The names are those of `wllm_api.tools`, which is not loaded for a help text; a test compares the two.
    group.add_argument(
        "--tool-parser",
        metavar="NAME",
        default="auto",
        help="how the model writes tool calls: none, deepseek, functiongemma, gemma4, glm, granite, harmony, hermes, "
        "llama3, mistral, phi4, qwen3_coder (default: auto, by its chat template)",
    )
    group.add_argument(
        "--reasoning-parser",
        metavar="NAME",
        default="auto",
        help="how the model marks its reasoning: none, gemma4, harmony, mistral, seed, think "
        "(default: auto, by its chat template)",
    )


def _add_watching(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--log-requests",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a line of the log for each request: id, route, status, tokens, times; never its text (default: on)",
    )
    group.add_argument(
        "--metrics-prefix",
        default="wllm:",
        metavar="PREFIX",
        help="prefix of the names in /metrics (default: wllm:)",
    )
