"""Time to the first token with and without a prefix hit: SmolLM2-135M on the CPU, in process, one request at a time."""

from __future__ import annotations

import argparse
import random
import statistics

from _common import MODEL, machine, print_table, timed

from wllm import LLM, SamplingParams

FIRST = SamplingParams(temperature=0, max_tokens=1)


def first_token(llm: LLM, prompt: list[int]) -> None:
    llm.generate([prompt], FIRST, use_tqdm=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each (default: 3)")
    args = parser.parse_args()
    numbers = random.Random(0)
    rows = []
    with LLM(MODEL, dtype="float32") as llm:
        first_token(llm, [numbers.randrange(100, 1000) for _ in range(64)])
        for length in (128, 512, 2048):
            cold, warm = [], []
            hits = llm.stats().prefix_cache_hits_total
            for _ in range(args.repeats):
                prompt = [numbers.randrange(100, llm.model_info.vocab_size) for _ in range(length)]
                cold.append(timed(first_token, llm, prompt))
                warm.append(timed(first_token, llm, prompt))
            assert llm.stats().prefix_cache_hits_total > hits, "the second time was to hit the prefix cache"
            cold_ms, warm_ms = statistics.median(cold) * 1e3, statistics.median(warm) * 1e3
            rows.append((f"{length:,}", f"{cold_ms:,.1f}", f"{warm_ms:,.1f}", f"{cold_ms / warm_ms:.1f}x"))
    print_table(
        f"Time to first token in ms, median of {args.repeats}; {machine()}",
        ("prompt tokens", "cold", "prefix hit", "ratio"),
        rows,
    )


if __name__ == "__main__":
    main()
