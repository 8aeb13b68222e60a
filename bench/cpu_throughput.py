"""Tokens per second on the CPU against transformers' padded generate: SmolLM2-135M, float32, same weights and prompts.

Both engines run in this process, turn by turn, so that a slow phase of the machine meets both. What counts are the
tokens that the requests asked for: a padded batch runs on to its longest answer, and pads its prompts to the longest.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from _common import MODEL, machine, print_table, spread, timed

from wllm import LLM, SamplingParams
from wllm_runtime.testing import transformers_model


@dataclass(frozen=True)
class Case:
    """Prompts as token ids and the number of tokens wanted for each."""

    name: str
    prompts: list[list[int]]
    wanted: list[int]

    @property
    def num_tokens(self) -> int:
        return sum(self.wanted)


def cases(vocab_size: int, seed: int) -> list[Case]:
    numbers = random.Random(seed)

    def prompt(length: int) -> list[int]:
        return [numbers.randrange(100, vocab_size) for _ in range(length)]

    ragged = [(numbers.randrange(16, 320), numbers.randrange(16, 160)) for _ in range(16)]
    return [
        Case("batch 1, 64 in, 128 out", [prompt(64)], [128]),
        Case("batch 8, 64 in, 96 out", [prompt(64) for _ in range(8)], [96] * 8),
        Case(
            "16 ragged, 16-320 in, 16-160 out",
            [prompt(length) for length, _ in ragged],
            [wanted for _, wanted in ragged],
        ),
    ]


def run_wllm(llm: LLM, case: Case) -> None:
    params = [SamplingParams(temperature=0, max_tokens=wanted, ignore_eos=True) for wanted in case.wanted]
    outputs = llm.generate(case.prompts, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == case.wanted


@torch.inference_mode()
def run_transformers(model: Any, case: Case) -> None:
    longest = max(map(len, case.prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in case.prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in case.prompts])
    wanted = max(case.wanted)
    out = model.generate(
        padded, attention_mask=mask, do_sample=False, max_new_tokens=wanted, min_new_tokens=wanted, pad_token_id=0
    )
    assert out.shape[1] == longest + wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    reference = transformers_model(MODEL)
    # The same prompts come again and again: without a prefix cache every run does the whole work.
    llm = LLM(MODEL, dtype="float32", enable_prefix_caching=False)
    rows = []
    for case in cases(llm.model_info.vocab_size, args.seed):
        run_wllm(llm, case)
        run_transformers(reference, case)
        ours, theirs = [], []
        for _ in range(args.repeats):
            ours.append(case.num_tokens / timed(run_wllm, llm, case))
            theirs.append(case.num_tokens / timed(run_transformers, reference, case))
        ratio = statistics.median(ours) / statistics.median(theirs)
        rows.append((case.name, spread(ours), spread(theirs), f"{ratio:.2f}x"))
    llm.shutdown()
    print_table(
        f"Output tokens/s on the CPU, median of {args.repeats} (range); {machine()}",
        ("requests", "wLLM", "transformers", "ratio"),
        rows,
    )


if __name__ == "__main__":
    main()
