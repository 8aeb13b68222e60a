"""Random load on a whole server for minutes: nothing may fail, hang, leak or answer differently than before.

Starts `wllm serve`, sends what clients send (arrivals at random and in bursts, short and long prompts, n > 1, seeds,
log-probabilities, penalties, biases, stop strings, chats, clients that leave, requests that are wrong), judges every
answer, watches the memory of both processes and of the GPU, and ends the server with Ctrl+C. Exit code 1 on any
violation.

    python bench/soak.py --minutes 3                                a tiny random model on the CPU
    python bench/soak.py --shape qwen2.5-0.5b --dtype bfloat16 --device cuda --rate 40 -- --max-num-seqs 64

Needs psutil. Everything after `--` goes to `wllm serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from _soak_load import Load
from _soak_requests import Limits, Mix
from _soak_server import SoakServer
from _soak_watch import Watch

from wllm.bench.serve_http import Server
from wllm.bench.shapes import SHAPES, write_shape

# Few blocks and short steps, so that preemption, eviction and chunks happen. Flags after `--` win.
TINY = ["--max-num-seqs", "16", "--num-kv-blocks", "80", "--max-num-batched-tokens", "128"]


def main() -> int:
    """Run; the exit code."""
    args = _arguments()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return asyncio.run(_soak(args, Path(folder)))


async def _soak(args: argparse.Namespace, folder: Path) -> int:
    server = SoakServer(folder, _serve_arguments(args, folder))
    try:
        entry = server.model()
        text_ids = _text_ids() if args.model is None else ()
        longest = args.longest_answer or entry["max_model_len"] // 4
        limits = Limits(args.vocab_size, entry["max_model_len"], text_ids, longest)
        print(f"ready after {server.start_s:.1f} s, {entry['max_model_len']} tokens of context", flush=True)
        load = Load(
            Server.at(server.url),
            Mix(limits, args.seed),
            rate=args.rate,
            max_open=args.max_open,
            exact=args.dtype == "float32",
            seed=args.seed,
        )
        watch = Watch(server, load)
        watching = asyncio.create_task(watch.run())
        await load.run(args.minutes * 60)
        violations = load.tally.violations
        violations += await watch.at_rest()
        watching.cancel()
        load.close()
        violations += watch.growth()
        violations += [f"the log says: {line}" for line in server.errors()]
        violations += server.interrupt()
        violations += watch.vram_left()
        summary = {"start_s": round(server.start_s, 1), **watch.summary(), **dataclasses.asdict(load.tally)}
    finally:
        server.kill()
    for name, value in summary.items():
        if name != "violations":
            print(f"{name:>20}  {value}")
    if args.json is not None:
        args.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    for violation in violations:
        print(f"violation: {violation}")
    if violations:
        print("the end of the server's log:", *server.text().splitlines()[-20:], sep="\n")
    print(f"soak: {len(violations)} violations in {sum(load.tally.sent.values())} requests")
    return 1 if violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="of load (default: 8)")
    parser.add_argument("--model", help="a real model (default: --shape with random weights)")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny", help="(default: tiny)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="cpu", help="(default: cpu)")
    parser.add_argument("--dtype", default="float32", help="float32 compares probes exactly (default: float32)")
    parser.add_argument("--rate", type=float, default=20.0, help="arrivals a second (default: 20)")
    parser.add_argument("--max-open", type=int, default=96, help="most requests open at a time (default: 96)")
    parser.add_argument("--longest-answer", type=int, help="tokens (default: a quarter of the context)")
    parser.add_argument("--vocab-size", type=int, help="token ids of prompts lie below this (default: the shape's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the summary to this file")
    parser.add_argument("serve", nargs="*", metavar="-- FLAG", help="flags of wllm serve")
    args = parser.parse_args()
    if args.model is not None and args.vocab_size is None:
        parser.error("--model needs --vocab-size")
    args.vocab_size = args.vocab_size or SHAPES[args.shape]["vocab_size"]
    return args


def _serve_arguments(args: argparse.Namespace, folder: Path) -> list[str]:
    common = ["--device", args.device, "--dtype", args.dtype]
    if args.model is not None:
        return [args.model, *common, *args.serve]
    model = write_shape(args.shape, folder)
    _add_tokenizer(model)
    small = TINY if args.shape == "tiny" else []
    return [str(model), "--load-format", "dummy", *common, *small, *args.serve]


def _add_tokenizer(model: Path) -> None:
    # That of the scripted engine: small, and of known bytes. Ids behind it have no text.
    from wllm_api.engine.scripted_model import CHAT_TEMPLATE, SPECIAL_TOKENS, build_tokenizer

    build_tokenizer().save(str(model / "tokenizer.json"))
    settings = {"chat_template": CHAT_TEMPLATE, "bos_token": SPECIAL_TOKENS[1], "eos_token": SPECIAL_TOKENS[2]}
    (model / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config |= {"bos_token_id": 1, "eos_token_id": 2}  # the end of a form must be a token of this tokenizer
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _text_ids() -> tuple[int, ...]:
    from wllm_api.engine.scripted_model import build_tokenizer

    tokenizer = build_tokenizer()
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    vocabulary = sorted((token_id, token) for token, token_id in tokenizer.get_vocab().items() if token not in special)
    return tuple(token_id for token_id, token in vocabulary if token.isascii())


if __name__ == "__main__":
    sys.exit(main())
