"""The kept set of min-p, top-k and top-p against sorting in float64."""

from __future__ import annotations

import importlib
import random

import pytest
import torch

from wllm_kernels.reference.filters import thresholds


def naive_kept(scaled: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    weights = torch.tensor(scaled, dtype=torch.float64).exp()
    kept = set((weights >= min_p * weights.max()).nonzero().flatten().tolist())
    if 0 < top_k < len(scaled):
        kth = sorted((scaled[i] for i in kept), reverse=True)[:top_k][-1]
        kept = {i for i in kept if scaled[i] >= kth}
    if top_p < 1:
        total = float(sum(weights[i] for i in kept))
        larger = {i: sum(float(weights[j]) for j in kept if scaled[j] > scaled[i]) / total for i in kept}
        kept = {i for i in kept if larger[i] < top_p or scaled[i] == max(scaled)}
    return kept


@pytest.mark.parametrize("intervals", [4, 2048])
@pytest.mark.parametrize("seed", range(25))
def test_agreement(device: str, seed: int, intervals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("wllm_kernels.reference.filters"), "_INTERVALS", intervals)
    choose = random.Random(seed)
    torch.manual_seed(seed)
    logits = torch.randn(6, 60) * 3
    if seed % 3 == 0:
        logits = logits.round()  # ties
    scaled = logits - logits.amax(-1, keepdim=True)
    top_k = [choose.choice([0, 1, 3, 20, 59, 60, 1000]) for _ in range(6)]
    top_p = [choose.choice([1.0, 1.0, 0.0, 0.3, 0.9, 0.999]) for _ in range(6)]
    min_p = [choose.choice([0.0, 0.0, 0.02, 0.5, 1.0]) for _ in range(6)]
    floor = thresholds(
        scaled.to(device),
        torch.tensor(top_k, device=device),
        torch.tensor(top_p, device=device),
        torch.tensor(min_p, device=device),
    )
    for row in range(6):
        kept = set((scaled[row] >= floor[row].cpu()).nonzero().flatten().tolist())
        assert kept == naive_kept(scaled[row].tolist(), top_k[row], top_p[row], min_p[row])


def test_flat_row_falls_into_one_interval(device: str) -> None:
    scaled = -torch.linspace(0, 0.01, 5000, device=device).unsqueeze(0)
    floor = thresholds(scaled, None, torch.tensor([0.8], device=device), None)
    assert 3950 < int((scaled >= floor).sum()) < 4050


def test_nothing_to_filter() -> None:
    assert thresholds(torch.zeros(3, 8), None, None, None).tolist() == [-torch.inf] * 3


@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.9, 0.999999, 0.99999994])
def test_whole_vocabulary_of_minus_infinity_but_one(device: str, top_p: float) -> None:
    scaled = torch.full((1, 500), -torch.inf, device=device)
    scaled[0, 77] = 0.0
    assert thresholds(scaled, None, torch.tensor([top_p], device=device), None).tolist() == [0.0]


@pytest.mark.parametrize(("min_p", "kept"), [(-0.5, 3), (0.0, 3), (1.0, 1), (1.5, 1)])
def test_min_p_out_of_range_filters_nothing_or_all_but_the_largest(device: str, min_p: float, kept: int) -> None:
    scaled = torch.tensor([[-1.0, 0.0, -3.0]], device=device)
    floor = thresholds(scaled, None, None, torch.tensor([min_p], device=device))
    assert int((scaled >= floor).sum()) == kept
