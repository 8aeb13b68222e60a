"""Command-line flags of the engine, shared by every command that loads a model. Standard library only."""

from __future__ import annotations

import argparse
import json
from typing import Any


def _sampling(text: str) -> dict[str, float]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, (int, float)) for value in values.values()):
        raise argparse.ArgumentTypeError(f'{text} is not a JSON object of numbers, such as {{"temperature": 0.7}}')
    return values


# Mirrors `wllm_runtime.EngineConfig`, which checks the values; a test compares the two.
_ENGINE_FLAGS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "--device",
        {"choices": ("auto", "cuda", "cpu"), "default": "auto", "help": "where the model runs (default: auto)"},
    ),
    (
        "--dtype",
        {
            "choices": ("auto", "float32", "bfloat16", "float16"),
            "default": "auto",
            "help": "type of weights and KV cache (default: auto, which is float32 on a CPU)",
        },
    ),
    ("--max-model-len", {"type": int, "metavar": "TOKENS", "help": "longest prompt plus answer (default: what fits)"}),
    (
        "--max-num-seqs",
        {
            "type": int,
            "metavar": "N",
            "help": "requests that run at a time; others wait (default: 64, up to 256 by the GPU's memory)",
        },
    ),
    (
        "--max-num-batched-tokens",
        {
            "type": int,
            "metavar": "TOKENS",
            "help": "most tokens computed in one step (default: 512 on a CPU, 2048 to 8192 by the GPU's memory)",
        },
    ),
    ("--block-size", {"type": int, "default": 16, "metavar": "TOKENS", "help": "tokens in a KV block (default: 16)"}),
    ("--num-kv-blocks", {"type": int, "metavar": "N", "help": "KV blocks to allocate (default: from free memory)"}),
    (
        "--gpu-memory-utilization",
        {
            "type": float,
            "default": 0.9,
            "metavar": "SHARE",
            "help": "share to use of the GPU memory that is free at start, weights included (default: 0.9)",
        },
    ),
    (
        "--enable-prefix-caching",
        {
            "action": argparse.BooleanOptionalAction,
            "default": True,
            "help": "keep KV blocks of finished requests for prompts that begin alike (default: on)",
        },
    ),
    (
        "--load-format",
        {"choices": ("auto", "dummy"), "default": "auto", "help": "'dummy' fills the model with random values"},
    ),
    ("--quantization", {"metavar": "METHOD", "help": "not supported yet; GGUF files are dequantised on loading"}),
    (
        "--kv-cache-dtype",
        {
            "choices": ("auto", "int8", "fp8"),
            "default": "auto",
            "help": "type of the KV cache; 8 bits hold twice the tokens (default: auto, the model's dtype)",
        },
    ),
    (
        "--kv-offload-gib",
        {
            "type": float,
            "default": 0.0,
            "metavar": "GIB",
            "help": "host memory for KV blocks that leave the GPU's prefix cache (default: 0, off)",
        },
    ),
    ("--revision", {"metavar": "NAME", "help": "branch, tag or commit on the hub (default: main)"}),
    (
        "--skip-tokenizer-init",
        {"action": "store_true", "help": "load no tokenizer: requests send token ids, answers have no text"},
    ),
    (
        "--seed",
        {
            "type": int,
            "default": 0,
            "metavar": "N",
            "help": "seed of the random weights of --load-format dummy (default: 0)",
        },
    ),
    (
        "--pipeline-depth",
        {"type": int, "default": 2, "metavar": "STEPS", "help": "steps in flight; 1 is for debugging (default: 2)"},
    ),
    (
        "--max-stall-ms",
        {
            "type": float,
            "default": 100.0,
            "metavar": "MS",
            "help": "longest step while others wait for their next token; prompts are cut to fit (default: 100)",
        },
    ),
    (
        "--enforce-eager",
        {"action": "store_true", "help": "run without CUDA graphs: slower, starts sooner, takes less memory"},
    ),
    (
        "--step-wait",
        {
            "choices": ("auto", "spin", "block"),
            "default": "auto",
            "help": "how to wait for the GPU: spin takes a CPU core, block is slower (default: auto, by the cores)",
        },
    ),
    (
        "--override-generation-config",
        {
            "type": _sampling,
            "metavar": "JSON",
            "help": 'sampling where a request is silent, such as {"temperature": 0.7} (default: the model\'s own)',
        },
    ),
    (
        "--task",
        {
            "choices": ("auto", "generate", "embed", "score"),
            "default": "auto",
            "help": "write text, make embeddings, or score pairs of texts (default: auto, by the model's files)",
        },
    ),
)


def add_engine_flags(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the model argument, a list if there may be `several`, and every engine setting."""
    # Else argparse shows all of them above each error.
    parser.usage = f"%(prog)s [MODEL{' ...' if several else ''}] [flags]"
    parser.add_argument(
        "model",
        nargs="*" if several else "?",
        metavar="MODEL",
        help="hub id, local directory, .gguf file, or name of a model of Ollama or LM Studio (default: a small model, "
        "SmolLM2-135M-Instruct)" + ("; of several the first is loaded at once, the others by name" if several else ""),
    )
    group = parser.add_argument_group("engine")
    for flag, options in _ENGINE_FLAGS:
        group.add_argument(flag, **options)


def engine_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The engine settings among parsed flags, by `EngineConfig` field name, without the model."""
    names = (flag.removeprefix("--").replace("-", "_") for flag, _ in _ENGINE_FLAGS)
    return {name: getattr(args, name) for name in names}
