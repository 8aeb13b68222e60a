"""The sampler's noise: its written formula, and that draws follow the model's distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from wllm_kernels import Draw, sample
from wllm_kernels.reference.noise import gumbel, row_keys

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix64(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def fmix32(x: int) -> int:
    x = (x ^ x >> 16) * 0x85EBCA6B & M32
    x = (x ^ x >> 13) * 0xC2B2AE35 & M32
    return x ^ x >> 16


def naive_noise(seed: int, position: int, token_id: int) -> float:
    key = mix64(mix64((seed + GAMMA) & M64) + (position + 1) * GAMMA & M64)
    h = fmix32(fmix32(token_id * 0x9E3779B9 + (key & M32) & M32) ^ key >> 32)
    v = min(((h & 0x7FFFFFFF) + 0.5) * 2.0**-31, 1 - 2.0**-24)
    return -math.log(-math.log1p(-v))


@pytest.mark.parametrize("seed", [0, 1, -1, 123456789, (1 << 63) - 1, -(1 << 63)])
def test_formula(device: str, seed: int) -> None:
    positions = torch.tensor([0, 1, 17, 100_000], device=device)
    keys = row_keys(torch.full_like(positions, seed), positions)
    ids = torch.tensor([0, 1, 2, 31_999, 151_935], dtype=torch.int32, device=device)
    noise = gumbel(keys[:, :1], keys[:, 1:], ids)
    expected = [[naive_noise(seed & M64, position, token) for token in ids.tolist()] for position in positions.tolist()]
    torch.testing.assert_close(noise.cpu(), torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_noise_is_always_finite() -> None:
    ids = torch.arange(1 << 20, dtype=torch.int32)
    noise = gumbel(torch.tensor([3], dtype=torch.int32), torch.tensor([5], dtype=torch.int32), ids)
    assert bool(noise.isfinite().all())
    # Mean and variance of the standard Gumbel distribution.
    assert abs(float(noise.mean()) - 0.57722) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.02


def inverse_fmix32(x: int) -> int:
    x ^= x >> 16
    x = x * pow(0xC2B2AE35, -1, 1 << 32) & M32
    x ^= x >> 13 ^ x >> 26
    x = x * pow(0x85EBCA6B, -1, 1 << 32) & M32
    return x ^ x >> 16


@pytest.mark.parametrize("hashed", [0, 0x7FFFFFFF])
def test_extreme_hashes_give_finite_noise(device: str, hashed: int) -> None:
    high = inverse_fmix32(hashed)
    assert fmix32(high) == hashed
    halves = torch.tensor([0, high - (high >> 31 << 32)], dtype=torch.int32, device=device)
    noise = gumbel(halves[:1], halves[1:], torch.zeros(1, dtype=torch.int32, device=device))
    assert float(noise) == pytest.approx(22.18 if hashed == 0 else -2.81, abs=0.01)


def chi_square(tokens: Tensor, probabilities: Tensor) -> float:
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    expected = probabilities.double() * len(tokens)
    return float(((counts - expected).square() / expected).sum())


@pytest.mark.parametrize("vary", ["seeds", "positions"])
@pytest.mark.parametrize("filtered", [False, True])
def test_draws_follow_the_distribution(vary: str, filtered: bool) -> None:
    vocab, temperature, rows = 12, 0.8, 60_000
    logits = torch.randn(vocab)
    probabilities = torch.softmax(logits / temperature, -1)
    top_k = None
    if filtered:
        top_k = torch.full((rows,), 7)
        probabilities = torch.where(logits >= logits.sort(descending=True).values[6], probabilities, 0)
    varied, fixed = torch.arange(rows), torch.full((rows,), 42)
    seeds, positions = (varied, fixed) if vary == "seeds" else (fixed, varied)
    options = Draw(torch.full((rows,), temperature), seeds, positions, top_k=top_k)
    tokens = sample(logits.expand(rows, -1), draw=options)
    possible = probabilities.nonzero().flatten()
    assert set(tokens.tolist()) <= set(possible.tolist())
    ranks = torch.searchsorted(possible, tokens)
    probabilities = probabilities[possible] / probabilities.sum()
    # The 99.9 % points of chi-square with 11 and 6 degrees of freedom are 31.3 and 22.5.
    assert chi_square(ranks, probabilities) < (22.5 if filtered else 31.3)


def test_pairs_of_rows_are_independent() -> None:
    rows, vocab = 40_000, 8
    zeros = torch.zeros(1, vocab).expand(rows, -1)
    ones, seeds = torch.ones(rows), torch.arange(rows)
    first = sample(zeros, draw=Draw(ones, seeds, torch.zeros(rows, dtype=torch.int64)))
    for other in (
        Draw(ones, seeds + 1, torch.zeros(rows, dtype=torch.int64)),
        Draw(ones, seeds, torch.ones(rows, dtype=torch.int64)),
    ):
        pairs = first * vocab + sample(zeros, draw=other)
        # The 99.9 % point of chi-square with 63 degrees of freedom is 103.4.
        assert chi_square(pairs, torch.full((vocab * vocab,), 1 / vocab**2)) < 103.4
