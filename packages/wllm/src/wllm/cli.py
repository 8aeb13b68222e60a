"""The `wllm` command. Its top level imports the standard library only, so that `wllm --help` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from wllm.bench.command import add_bench
from wllm.bench.flag_types import count
from wllm.console import complain, use_utf8
from wllm.doctor.command import add_doctor
from wllm.flags import add_engine_flags, engine_settings

EPILOG = """examples:
  wllm serve                                   the small default model on http://127.0.0.1:8000/v1
  wllm serve Qwen/Qwen2.5-0.5B-Instruct        a model from the hub
  wllm serve C:\\models\\small.gguf --port 9000  a file
  wllm chat                                    talk to a model in the terminal
  wllm bench latency --shape qwen2.5-0.5b      how fast a model of these sizes runs here; no download
  wllm doctor                                  what is wrong here, and how to mend it"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    use_utf8()
    args = build_parser().parse_args(argv)
    if args.version:
        return _version()
    if args.command is None:
        build_parser().print_help()
        return 2
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not _is_for_the_user(error):
            raise
        complain(f"wllm {args.command}: {error}")
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="wllm",
        description="A native Windows and Linux LLM inference server with an OpenAI-compatible API.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_serve(commands)
    _add_chat(commands)
    add_bench(commands)
    add_doctor(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser("serve", help="serve a model over an OpenAI-compatible HTTP API")
    add_engine_flags(serve)
    group = serve.add_argument_group("server")
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
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="key that clients must send; repeatable (default: the environment variable WLLM_API_KEY, else none)",
    )
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file with a key on each line; # begins a comment"
    )
    group.add_argument(
        "--rate-limit",
        type=count,
        metavar="N",
        help="requests that a key may send in a minute, without keys a client's address (default: no limit)",
    )
    group.add_argument(
        "--max-waiting",
        type=count,
        default=256,
        metavar="N",
        help="requests that may wait for their first token; more get a 503 (default: 256)",
    )
    group.add_argument("--no-auth", action="store_true", help="allow another --host than this machine without a key")
    group.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="name of the model in the API; repeatable (default: from MODEL)",
    )
    group.add_argument("--allowed-origin", action="append", default=[], metavar="URL", help="web page origin to allow")
    group.add_argument("--allowed-host", action="append", default=[], metavar="NAME", help="host name to answer to")
    group.add_argument(
        "--tool-parser",
        metavar="NAME",
        default="auto",
        help="how the model writes tool calls (default: by its chat template)",
    )
    group.add_argument(
        "--reasoning-parser",
        metavar="NAME",
        default="auto",
        help="how the model marks its reasoning (default: by its chat template)",
    )
    group.add_argument("--metrics-prefix", default="wllm:", help="prefix of the names in /metrics (default: wllm:)")
    group.add_argument(
        "--log-requests",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a line of the log for each request: id, route, status, tokens, times; never its text (default: on)",
    )
    serve.set_defaults(run=_serve)


def _add_chat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    chat = commands.add_parser("chat", help="talk to a model in the terminal")
    add_engine_flags(chat)
    group = chat.add_argument_group("conversation")
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument("--temperature", type=float, help="0 always takes the likeliest token (default: the model's)")
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help="longest answer (default: to the end of the context)"
    )
    chat.set_defaults(run=_chat)


def _serve(args: argparse.Namespace) -> int:
    from wllm.serve import ServeOptions, serve

    options = ServeOptions(
        host=args.host,
        port=args.port,
        ollama_port=args.ollama_port,
        api_keys=args.api_key,
        api_key_file=args.api_key_file,
        rate_limit=args.rate_limit,
        max_waiting=args.max_waiting,
        no_auth=args.no_auth,
        served_model_names=args.served_model_name,
        allowed_origins=args.allowed_origin,
        allowed_hosts=args.allowed_host,
        metrics_prefix=args.metrics_prefix,
        tool_parser=args.tool_parser,
        reasoning_parser=args.reasoning_parser,
        log_requests=args.log_requests,
    )
    return serve(args.model, engine_settings(args), options)


def _chat(args: argparse.Namespace) -> int:
    from wllm.chat import chat

    settings = {"model": args.model, **engine_settings(args)}
    return chat(settings, system=args.system, temperature=args.temperature, max_tokens=args.max_tokens)


def _version() -> int:
    from wllm.console import say
    from wllm_api.version import package_version

    say(f"wllm {package_version()}, Python {sys.version.split()[0]}")
    return 0


def _is_for_the_user(error: Exception) -> bool:
    # Named exceptions say what happened and what to do; anything else is a bug and keeps its traceback.
    modules = (type(error).__module__ or "").partition(".")[0]
    return modules.startswith("wllm")
