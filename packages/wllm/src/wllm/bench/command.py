"""The `bench` commands of the command line. Standard library only: what a command needs is imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from wllm.bench.flag_types import assignment, batch_of, count, counts, names, positive, two_or_more
from wllm.bench.serve_flags import add_serve_flags
from wllm.bench.shapes import SHAPES
from wllm.flags import add_engine_flags

Commands = argparse._SubParsersAction  # the type of a set of commands has no public name


def add_bench(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add `bench` and its commands."""
    bench = commands.add_parser("bench", help="measure speed, alone or beside other engines")
    bench.set_defaults(run=lambda args: _help(bench))
    kinds = bench.add_subparsers(dest="bench_command", metavar="COMMAND")
    _add_latency(kinds)
    _add_throughput(kinds)
    _add_serve(kinds)
    _add_compare(kinds)
    _add_report(kinds)
    _add_ablate(kinds)
    _add_profile(kinds)


def _command(kinds: Commands[argparse.ArgumentParser], name: str, purpose: str) -> argparse.ArgumentParser:
    return kinds.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")


def _add_latency(kinds: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(kinds, "latency", "decode step, first token and prefill, beside the bandwidth floor")
    _add_model(parser)
    _add_decode(parser, batches=(1, 32, 128))
    group = parser.add_argument_group("measurement")
    _add_first_token(group)
    _add_prefill(group)
    _add_output(parser)
    parser.set_defaults(run=_latency)


def _add_throughput(kinds: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(kinds, "throughput", "tokens a second of many chat-like requests at once")
    _add_model(parser)
    group = parser.add_argument_group("measurement")
    _add_mix(group, num_requests=256)
    _add_repeats(group)
    _add_output(parser)
    parser.set_defaults(run=_throughput)


def _add_serve(kinds: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(kinds, "serve", "load on any OpenAI server: latencies, throughput, goodput")
    add_serve_flags(parser)
    parser.set_defaults(run=_serve)


def _add_compare(kinds: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(kinds, "compare", "the same prompts through wLLM, vLLM, transformers and llama.cpp")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="hub id, directory or, for llama.cpp, .gguf file")
    _add_shape(parser)
    group = parser.add_argument_group("engines")
    group.add_argument(
        "--engines",
        type=names,
        default=("wllm", "vllm", "transformers", "llama.cpp"),
        metavar="A,B",
        help="which, in order; the first is the one that ratios are of (default: wllm,vllm,transformers,llama.cpp)",
    )
    group.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="of each engine (default: auto)"
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of each engine (default: auto, which is bfloat16 on a GPU and float32 on a CPU)",
    )
    group.add_argument("--load-format", choices=("auto", "dummy"), default="auto", help="'dummy': random weights")
    group.add_argument(
        "--max-model-len", type=count, default=8192, metavar="TOKENS", help="of each engine (default: 8192)"
    )
    group.add_argument(
        "--gpu-memory-utilization", type=float, default=0.85, metavar="SHARE", help="of each engine (default: 0.85)"
    )
    group.add_argument("--gguf", metavar="FILE", help="what llama.cpp runs: the same model as a .gguf file")
    group.add_argument(
        "--python",
        type=assignment,
        action="append",
        default=[],
        metavar="ENGINE=PATH",
        help="Python that has the engine (default: this one); repeatable",
    )
    group.add_argument(
        "--env",
        type=assignment,
        action="append",
        default=[],
        metavar="ENGINE:NAME=VALUE",
        help="environment variable of the engine's process; repeatable",
    )
    group.add_argument(
        "--option",
        type=assignment,
        action="append",
        default=[],
        metavar="ENGINE:NAME=JSON",
        help="keyword argument of the engine's own constructor; repeatable",
    )
    group.add_argument(
        "--rows",
        type=assignment,
        action="append",
        default=[],
        metavar="ENGINE=TEXT",
        help="measure only rows with this text in their name for this engine; repeatable",
    )
    group.add_argument(
        "--kv-tokens",
        type=count,
        metavar="N",
        help="KV cache of wLLM and vLLM, so that the memory that they take can be compared (default: what fits)",
    )
    group.add_argument(
        "--together",
        action="store_true",
        help="keep all engines loaded and alternate row by row (the GPU must hold them all); "
        "otherwise each starts anew in every round",
    )
    _add_decode(parser, batches=(1, 32, 128))
    group = parser.add_argument_group("measurement")
    _add_mix(group, num_requests=256)
    _add_first_token(group)
    _add_prefill(group)
    group.add_argument("--rounds", type=count, default=2, metavar="N", help="A B A B: how often (default: 2)")
    group.add_argument(
        "--minutes", type=positive, default=60.0, metavar="M", help="start nothing new after this (default: 60)"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and lengths (default: 0)")
    _add_output(parser).add_argument(
        "--logs", type=Path, metavar="DIR", help="keep what each engine's process printed in this folder"
    )
    parser.set_defaults(run=_compare)


def _add_report(kinds: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(kinds, "report", "merge JSON results of one machine into a table with ratios")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what --json wrote")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write plots (PNG and SVG); needs wllm[bench]")
    parser.set_defaults(run=_report)


def _add_ablate(kinds: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(kinds, "ablate", "what each of the engine's techniques is worth: one off at a time")
    _add_model(parser)
    _add_decode(parser, batches=(1, 8, 32))
    group = parser.add_argument_group("measurement")
    _add_mix(group, num_requests=128)
    _add_first_token(group)
    group.add_argument(
        "--long-prompt",
        type=count,
        default=8192,
        metavar="TOKENS",
        help="that comes while streams decode (default: 8192)",
    )
    _add_output(parser)
    parser.set_defaults(run=_ablate)


def _add_profile(kinds: Commands[argparse.ArgumentParser]) -> None:
    parser = _command(kinds, "profile", "where a decode step and a prefill step go")
    _add_model(parser)
    group = parser.add_argument_group("measurement")
    group.add_argument("--batch", type=count, default=1, metavar="N", help="requests that decode (default: 1)")
    group.add_argument("--prompt-len", type=count, default=128, metavar="TOKENS", help="before decode (default: 128)")
    group.add_argument("--steps", type=count, default=100, metavar="N", help="decode steps looked at (default: 100)")
    group.add_argument(
        "--prefill-len", type=count, default=2048, metavar="TOKENS", help="of each prompt (default: 2048)"
    )
    group.add_argument("--top", type=count, default=20, metavar="N", help="kernels listed (default: 20)")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.set_defaults(run=_profile)


def _add_model(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)
    _add_shape(parser)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shape", choices=sorted(SHAPES), help="instead of MODEL: this model's sizes with random weights; no download"
    )


def _add_decode(parser: argparse.ArgumentParser, *, batches: tuple[int, ...]) -> None:
    group = parser.add_argument_group("decode")
    shown = ",".join(map(str, batches))
    group.add_argument(
        "--batches", type=counts, default=batches, metavar="N,N", help=f"requests that decode (default: {shown})"
    )
    group.add_argument("--prompt-len", type=count, default=128, metavar="TOKENS", help="of each request (default: 128)")
    group.add_argument(
        "--output-len", type=two_or_more, default=128, metavar="TOKENS", help="of each request (default: 128)"
    )
    _add_repeats(group)


def _add_mix(group: argparse._ArgumentGroup, *, num_requests: int) -> None:
    group.add_argument(
        "--num-requests",
        type=count,
        default=num_requests,
        metavar="N",
        help=f"of the chat-like mix (default: {num_requests})",
    )
    group.add_argument(
        "--longest", type=count, default=1024, metavar="TOKENS", help="cut of its prompts and answers (default: 1024)"
    )


def _add_first_token(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--first-token-len",
        type=count,
        default=2048,
        metavar="TOKENS",
        help="of the prompt whose first token is timed (default: 2048)",
    )


def _add_prefill(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prefill",
        type=batch_of,
        default=(8, 4096),
        metavar="NxTOKENS",
        help="prompts that come at once, and their length (default: 8x4096)",
    )


def _add_repeats(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--repeats", type=count, default=3, metavar="N", help="timed runs of each row (default: 3)")


def _add_output(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("output")
    group.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file, after each row")
    group.add_argument("--plot", type=Path, metavar="DIR", help="write plots (PNG and SVG); needs wllm[bench]")
    return group


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 2


def _latency(args: argparse.Namespace) -> int:
    from wllm.bench.latency import latency

    return latency(args)


def _throughput(args: argparse.Namespace) -> int:
    from wllm.bench.throughput import throughput

    return throughput(args)


def _serve(args: argparse.Namespace) -> int:
    from wllm.bench.serve import serve

    return serve(args)


def _compare(args: argparse.Namespace) -> int:
    from wllm.bench.compare import compare

    return compare(args)


def _report(args: argparse.Namespace) -> int:
    from wllm.bench.merge import report

    return report(args)


def _ablate(args: argparse.Namespace) -> int:
    from wllm.bench.ablate import ablate

    return ablate(args)


def _profile(args: argparse.Namespace) -> int:
    from wllm.bench.profiling import profile

    return profile(args)
