"""Lengths and token ids of a workload, from a seed: the same seed gives every engine the same prompts.

Chats have many short messages and few long ones. Kwon et al. (PagedAttention, SOSP 2023, figure 11) give the ShareGPT
conversations' means: 161 tokens in, 338 out. Here lengths are log-normal, a choice of ours that has that shape, with
medians and spreads that give those means after the cut to [4, 1024]; the means of what was drawn go with a result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

PROMPT_MEDIAN, PROMPT_SIGMA = 84.0, 1.2
OUTPUT_MEDIAN, OUTPUT_SIGMA = 236.0, 1.0
SHORTEST, LONGEST = 4, 1024
# Below are the ids of special tokens and bytes in most vocabularies.
FIRST_ID = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of one request."""

    prompt: int
    output: int


def chat_like(num_requests: int, seed: int, longest: int = LONGEST) -> list[Shape]:
    """Lengths of `num_requests` chat messages and their answers, each cut to [4, `longest`] tokens."""
    numbers = random.Random(seed)

    def draw(median: float, sigma: float) -> int:
        return min(max(round(math.exp(numbers.gauss(math.log(median), sigma))), SHORTEST), longest)

    return [Shape(draw(PROMPT_MEDIAN, PROMPT_SIGMA), draw(OUTPUT_MEDIAN, OUTPUT_SIGMA)) for _ in range(num_requests)]


def describe(shapes: Sequence[Shape]) -> str:
    """The workload in a line: number of requests, mean and longest lengths."""
    prompts, outputs = [shape.prompt for shape in shapes], [shape.output for shape in shapes]
    return (
        f"{len(shapes)} requests, log-normal lengths: {sum(prompts) / len(shapes):.0f} tokens in on average "
        f"(longest {max(prompts)}), {sum(outputs) / len(shapes):.0f} out (longest {max(outputs)})"
    )


class PromptMaker:
    """Prompts of random token ids, no two alike, so that no prefix cache helps any engine."""

    def __init__(self, vocab_size: int, seed: int | str) -> None:
        self._ids = range(min(FIRST_ID, vocab_size // 2), vocab_size)
        self._numbers = random.Random(seed)

    def one(self, length: int) -> list[int]:
        """One prompt of `length` token ids."""
        return self._numbers.choices(self._ids, k=length)

    def many(self, count: int, length: int) -> list[list[int]]:
        """`count` prompts of `length` token ids each."""
        return [self.one(length) for _ in range(count)]
