"""Which engines `wllm bench compare` runs, in which Python, with which options.

A contestant is named `ENGINE` or `ENGINE@LABEL`; the label tells two configurations of one engine apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wllm.bench.errors import BenchError

ENGINES = ("wllm", "vllm", "transformers", "llama.cpp")
BLOCK = 16  # tokens; the block size that wLLM and vLLM both take by default


@dataclass(frozen=True, slots=True)
class Contestant:
    """One engine as it will run. `only`: rows whose name has this text (all if empty)."""

    name: str
    engine: str
    python: str
    environment: dict[str, str]
    options: dict[str, Any]
    model: str
    only: str


@dataclass(frozen=True, slots=True)
class Common:
    """What all contestants share, resolved."""

    model: str
    device: str
    dtype: str
    dummy: bool
    max_model_len: int
    num_seqs: int


def contestants(args: argparse.Namespace, common: Common) -> list[Contestant]:
    """In the order of --engines; raises `BenchError` for a name that nobody has."""
    names: Sequence[str] = args.engines
    if not names or len(set(names)) != len(names):
        raise BenchError(
            f"--engines {','.join(names)} names no engine, or one twice; name each once, or as ENGINE@LABEL"
        )
    for flag, pairs in (
        ("--python", args.python),
        ("--env", args.env),
        ("--option", args.option),
        ("--rows", args.rows),
    ):
        for key, _ in pairs:
            if key.partition(":")[0] not in names:
                raise BenchError(f"{flag} {key}=... is for none of --engines {','.join(names)}; use one of those names")
    return [_contestant(name, args, common) for name in names]


def _contestant(name: str, args: argparse.Namespace, common: Common) -> Contestant:
    engine = name.partition("@")[0]
    if engine not in ENGINES:
        raise BenchError(f"there is no engine {engine!r}; known: {', '.join(ENGINES)}")
    options = _options(engine, args, common)
    for key, text in _own(name, args.option):
        try:
            options[key] = json.loads(text)
        except ValueError:
            raise BenchError(f"--option {name}:{key}={text} is no JSON; write a string as '\"text\"'") from None
    return Contestant(
        name=name,
        engine=engine,
        python=_absolute(dict(args.python).get(name, sys.executable)),
        environment=dict(_own(name, args.env)),
        options=options,
        model=common.model if engine != "llama.cpp" else _absolute(args.gguf or common.model),
        only=dict(args.rows).get(name, ""),
    )


def _absolute(path: str) -> str:
    # Workers run elsewhere. Links stay: a virtual environment's Python is one.
    return str(Path(path).absolute()) if Path(path).exists() else path


def _own(name: str, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    # "vllm:NAME" of contestant "vllm"
    return [(key.partition(":")[2], value) for key, value in pairs if key.partition(":")[0] == name]


def _options(engine: str, args: argparse.Namespace, common: Common) -> dict[str, Any]:
    if engine == "transformers":
        return {"device": common.device, "dtype": common.dtype, "dummy": common.dummy}
    if engine == "llama.cpp":
        layers = -1 if common.device == "cuda" else 0
        return {
            "n_ctx": common.max_model_len,
            "n_gpu_layers": layers,
            "n_batch": 2048,
            "n_ubatch": 512,
            "verbose": False,
        }
    options: dict[str, Any] = {
        "dtype": common.dtype,
        "max_model_len": common.max_model_len,
        "gpu_memory_utilization": args.gpu_memory_utilization,
        "load_format": "dummy" if common.dummy else "auto",
        "skip_tokenizer_init": True,
        "seed": args.seed,
    }
    blocks = None if args.kv_tokens is None else -(-args.kv_tokens // BLOCK)
    if engine == "wllm":
        options |= {"device": common.device, "max_num_seqs": common.num_seqs, "num_kv_blocks": blocks}
    elif blocks is not None:
        options |= {"num_gpu_blocks_override": blocks}
    return options
