"""The `wllm` command. Its top level imports the standard library only, so that `wllm --help` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from wllm.bench.command import add_bench
from wllm.console import complain, use_utf8
from wllm.doctor.command import add_doctor
from wllm.flags import add_engine_flags, engine_settings
from wllm.interrupts import INTERRUPTED
from wllm.models.command import add_models
from wllm.server_flags import add_server_flags

EPILOG = """examples:
  wllm serve                                   the small default model on http://127.0.0.1:8000/v1
  wllm serve Qwen/Qwen2.5-0.5B-Instruct        a model from the hub
  wllm serve MODEL OTHER --keep-alive 10m      two models, loaded by name and unloaded when idle
  wllm serve C:\\models\\small.gguf --port 9000  a file
  wllm chat                                    talk to a model in the terminal
  wllm models list                             what is on this disk: hub cache, Ollama, LM Studio
  wllm bench latency --shape qwen2.5-0.5b      how fast a model of these sizes runs here; no download
  wllm doctor                                  what is wrong here, and how to mend it"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    use_utf8()
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        # argparse itself does not say of which command.
        below = getattr(args, "bench_command", None) or getattr(args, "models_command", None)
        command = " ".join(filter(None, ["wllm", args.command, below]))
        hint = f"`{command} --help` lists what it knows"
        if not unknown[0].startswith("-") and args.command == "serve":
            hint = "name all models in one place, before the flags or behind them"
        parser.error(f"{command} does not know {' '.join(unknown)}; {hint}")
    if args.version:
        return _version()
    if args.command is None:
        parser.print_help()
        return 2
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return INTERRUPTED
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
    add_models(commands)
    add_doctor(commands)
    return parser


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    purpose = "serve one or more models over an OpenAI-compatible HTTP API"
    serve = commands.add_parser("serve", help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
    add_engine_flags(serve, several=True)
    add_server_flags(serve)
    serve.set_defaults(run=_serve)


def _add_chat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    purpose = "talk to a model in the terminal"
    chat = commands.add_parser("chat", help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}; no server.")
    add_engine_flags(chat)
    group = chat.add_argument_group("conversation")
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument(
        "--temperature", type=float, metavar="T", help="0 always takes the likeliest token (default: the model's)"
    )
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help="longest answer (default: to the end of the context)"
    )
    chat.set_defaults(run=_chat)


def _serve(args: argparse.Namespace) -> int:
    _tell_of_an_idle_gpu(args.device)
    from wllm.serve import ServeOptions, serve
    from wllm.served_models import models_to_serve

    options = ServeOptions(
        host=args.host,
        port=args.port,
        ollama_port=args.ollama_port,
        api_keys=args.api_key,
        api_key_file=args.api_key_file,
        rate_limit=args.rate_limit,
        max_waiting=args.max_waiting,
        max_body_mib=args.max_body_mib,
        no_auth=args.no_auth,
        allowed_origins=args.allowed_origin,
        allowed_hosts=args.allowed_host,
        metrics_prefix=args.metrics_prefix,
        max_loaded_models=args.max_loaded_models,
        log_requests=args.log_requests,
    )
    return serve(models_to_serve(args), options)


def _chat(args: argparse.Namespace) -> int:
    _tell_of_an_idle_gpu(args.device)
    from wllm.chat import chat

    settings = {"model": args.model, **engine_settings(args)}
    return chat(settings, system=args.system, temperature=args.temperature, max_tokens=args.max_tokens)


def _tell_of_an_idle_gpu(device: str) -> None:
    from wllm.doctor.torch_build import idle_gpu

    if device != "cpu" and (notice := idle_gpu()):
        complain(notice)


def _version() -> int:
    from wllm.console import say
    from wllm_api.version import package_version

    say(f"wllm {package_version()}, Python {sys.version.split()[0]}")
    return 0


def _is_for_the_user(error: Exception) -> bool:
    # Named exceptions say what happened and what to do; anything else is a bug and keeps its traceback.
    modules = (type(error).__module__ or "").partition(".")[0]
    return modules.startswith("wllm")
