"""Many draws on a GPU: the same tokens as the reference on the CPU, and the model's distribution."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wllm_kernels import Draw, sample

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device_code")]

FILTERS: list[dict[str, float]] = [
    {},
    {"min_p": 0.02},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_k": 200, "top_p": 0.95, "min_p": 0.001},
]


def make_draw(rows: int, device: str, filters: dict[str, float], first_seed: int = 0) -> Draw:
    seeds = torch.arange(first_seed, first_seed + rows, device=device)
    columns = {name: torch.full((rows,), value, device=device) for name, value in filters.items()}
    return Draw(torch.full((rows,), 0.8, device=device), seeds, seeds * 31 + 7, **columns)


def different(logits: Tensor, filters: dict[str, float], first_seed: int) -> int:
    expected = sample(logits, draw=make_draw(len(logits), "cpu", filters, first_seed))
    actual = sample(logits.cuda(), draw=make_draw(len(logits), "cuda", filters, first_seed))
    return int((actual.cpu() != expected).sum())


@pytest.mark.parametrize("filters", FILTERS)
def test_hundred_thousand_draws_are_those_of_the_reference(filters: dict[str, float]) -> None:
    # Only a near tie may go another way: 1 in 10,000 at most.
    assert sum(different(2 * torch.randn(10_000, 512), filters, seed * 10_000) for seed in range(10)) <= 10


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_from_a_large_vocabulary(dtype: torch.dtype, filters: dict[str, float]) -> None:
    assert sum(different((2 * torch.randn(100, 151_936)).to(dtype), filters, seed * 100) for seed in range(3)) <= 1


@pytest.mark.parametrize("top_n", [None, 9])
def test_million_draws_follow_the_distribution(top_n: int | None) -> None:
    rows, vocab = 1_000_000, 40
    logits = torch.randn(vocab)
    probabilities = torch.softmax(logits.double() / 0.8, -1)
    if top_n is not None:
        probabilities[logits < logits.sort(descending=True).values[top_n - 1]] = 0
        probabilities /= probabilities.sum()
    filters = {} if top_n is None else {"top_k": top_n}
    tokens = sample(logits.cuda().expand(rows, -1), draw=make_draw(rows, "cuda", filters)).cpu()
    counts, expected = torch.bincount(tokens, minlength=vocab).double(), probabilities * rows
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    chi_square = float(((counts - expected)[possible].square() / expected[possible]).sum())
    # The 99.9 % points of chi-square with 39 and 8 degrees of freedom are 72.1 and 26.1.
    assert chi_square < (72.1 if top_n is None else 26.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_greedy_is_exact(dtype: torch.dtype) -> None:
    logits = torch.randn(130, 151_936).to(dtype)  # in half precision, full of ties
    lowest = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert torch.equal(sample(logits.cuda()).cpu(), lowest)


def test_runs_are_alike() -> None:
    logits, draw = 2 * torch.randn(64, 151_936, device="cuda"), make_draw(64, "cuda", {"top_k": 5000, "top_p": 0.99})
    expected = sample(logits, draw=draw)
    for _ in range(20):
        assert torch.equal(sample(logits, draw=draw), expected)
    for row in range(0, 64, 9):  # nor do neighbours matter, though a lone row is cut into more slices
        alone = Draw(*(None if c is None else c[row : row + 1] for c in (
            draw.temperature, draw.seeds, draw.positions, draw.top_k, draw.top_p, draw.min_p)))  # fmt: skip
        assert int(sample(logits[row : row + 1], draw=alone)) == int(expected[row])
