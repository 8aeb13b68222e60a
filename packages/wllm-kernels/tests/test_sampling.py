"""The sampler: exact where it is deterministic, against plain Python where it is not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from wllm_kernels import Draw, InvalidArgument, LogitBias, Penalties, sample

VOCAB = 70


def draw(rows: int, device: str = "cpu", *, temperature: float = 1.0, **filters: float) -> Draw:
    """The same temperature and filters for every row, seeds 0, 1, 2.."""
    options = {
        name: torch.full((rows,), value, dtype=torch.int64 if name == "top_k" else torch.float32, device=device)
        for name, value in (filters | {"temperature": temperature}).items()
    }
    seeds = torch.arange(rows, device=device)
    return Draw(seeds=seeds, positions=torch.full_like(seeds, 5), **options)


def test_greedy_takes_the_largest(device: str) -> None:
    logits = torch.randn(5, VOCAB, device=device)
    assert torch.equal(sample(logits), logits.argmax(-1))
    assert torch.equal(sample(logits, draw=draw(5, device, temperature=0.0)), logits.argmax(-1))


def test_greedy_tie_goes_to_the_lowest_id(device: str) -> None:
    logits = torch.zeros(3, 40_000, device=device)
    logits[:, [123, 124, 30_000]] = 2.0
    assert sample(logits).tolist() == [123] * 3


def test_logits_stay_as_they_are(device: str) -> None:
    logits = torch.randn(2, VOCAB, device=device)
    before = logits.clone()
    zero, one = torch.tensor([0], device=device), torch.tensor([1.0], device=device)
    bias = LogitBias(zero, zero, one)
    mask = torch.zeros(2, 3, dtype=torch.int32, device=device) + 5
    sample(logits, draw=draw(2, device, top_k=3), bias=bias, bitmask=mask)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-30, 1e-42])
def test_tiny_temperature_is_greedy(device: str, temperature: float) -> None:
    logits = torch.randn(6, VOCAB, device=device) * 50
    for filters in ({}, {"top_p": 1e-4}, {"top_k": 5, "top_p": 0.5, "min_p": 0.1}):
        tokens = sample(logits, draw=draw(6, device, temperature=temperature, **filters))
        assert torch.equal(tokens, logits.argmax(-1))


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}])
def test_filters_that_leave_one_token(device: str, filters: dict[str, float]) -> None:
    logits = torch.randn(50, VOCAB, device=device)
    assert torch.equal(sample(logits, draw=draw(50, device, temperature=5.0, **filters)), logits.argmax(-1))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_row_that_is_not_finite_fails_alone(device: str, value: float) -> None:
    logits = torch.randn(4, VOCAB, device=device)
    logits[1, 7] = value
    logits[2] = -torch.inf
    for options in (None, draw(4, device), draw(4, device, top_p=0.5, top_k=9)):
        tokens = sample(logits, draw=options).tolist()
        assert tokens[1:3] == [-1, -1] and min(tokens[0], tokens[3]) >= 0


def test_rows_without_an_allowed_token_are_not_the_models_fault(device: str) -> None:
    logits = torch.randn(4, VOCAB, device=device)
    logits[2, 0] = math.nan
    bitmask = torch.zeros(4, -(-VOCAB // 32), dtype=torch.int32, device=device)
    bitmask[3] = -1
    for options in (None, draw(4, device), draw(4, device, top_p=0.5, top_k=9)):
        tokens = sample(logits, draw=options, bitmask=bitmask).tolist()
        assert tokens[:3] == [-2, -2, -1] and tokens[3] >= 0


def test_minus_infinity_is_never_drawn(device: str) -> None:
    logits = torch.full((200, VOCAB), -torch.inf, device=device)
    logits[:, 5::10] = 0.0
    tokens = sample(logits, draw=draw(200, device, temperature=100.0))
    assert {token % 10 for token in tokens.tolist()} == {5}


def test_bias_and_bans(device: str) -> None:
    logits = torch.zeros(3, VOCAB, device=device)
    rows, ids = torch.tensor([0, 0, 1, 1], device=device), torch.tensor([9, 9, 0, 1], device=device)
    values = torch.tensor([2.0, 3.0, -torch.inf, -torch.inf], device=device)
    logits[0, 4] = 4.5
    assert sample(logits, bias=LogitBias(rows, ids, values)).tolist() == [9, 2, 0]


def test_bitmask(device: str) -> None:
    logits = torch.randn(4, VOCAB, device=device)
    allowed = torch.rand(4, VOCAB) < 0.2
    allowed[2] = True
    allowed[3] = torch.arange(VOCAB) == 31  # the sign bit of its word
    mask = torch.zeros(4, 3, dtype=torch.int64)
    for token in range(VOCAB):
        mask[:, token // 32] |= allowed[:, token].long() << token % 32
    mask[2] = 0xFFFFFFFF
    words = torch.where(mask >= 1 << 31, mask - (1 << 32), mask).int().to(device)
    expected = logits.cpu().masked_fill(~allowed, -torch.inf).argmax(-1)
    assert sample(logits, bitmask=words).tolist() == expected.tolist()


def test_penalties(device: str) -> None:
    logits = torch.randn(4, VOCAB)
    counts = torch.randint(0, 3, (3, VOCAB), dtype=torch.int32)
    seen = torch.rand(3, VOCAB) < 0.3
    rows, slots = [3, 1], [0, 2]
    repetition, presence, frequency = [1.5, 0.8], [0.3, -0.2], [0.4, 1.0]
    expected = logits.clone()
    for i, (row, slot) in enumerate(zip(rows, slots)):
        for token in range(VOCAB):
            value, count = float(logits[row, token]), int(counts[slot, token])
            if count or seen[slot, token]:
                value = value / repetition[i] if value > 0 else value * repetition[i]
            expected[row, token] = value - frequency[i] * count - presence[i] * (count > 0)
    penalties = Penalties(
        torch.tensor(rows, device=device),
        torch.tensor(slots, device=device),
        torch.tensor(repetition, device=device),
        torch.tensor(presence, device=device),
        torch.tensor(frequency, device=device),
        counts.to(device),
        seen.to(device),
    )
    # Only two tokens allowed at a time, so that the order of the whole row is looked at.
    for token in range(VOCAB - 1):
        mask = torch.zeros(4, 3, dtype=torch.int32)
        for allowed in (token, token + 1):
            mask[:, allowed // 32] |= 1 << allowed % 32 if allowed % 32 < 31 else -(1 << 31)
        got = sample(logits.to(device), bitmask=mask.to(device), penalties=penalties)
        assert got.tolist() == (expected[:, token : token + 2].argmax(-1) + token).tolist()
    greedy = sample(logits.to(device), penalties=penalties)
    assert greedy.tolist() == expected.argmax(-1).tolist()


def test_bias_comes_before_penalties(device: str) -> None:
    one, zero = torch.ones(1, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    counts = torch.zeros(1, 2, dtype=torch.int32, device=device)
    seen = torch.tensor([[True, False]], device=device)
    penalties = Penalties(zero, zero, one * 10, one * 0, one * 0, counts, seen)
    logits = torch.tensor([[0.0, 1.0]], device=device)
    # (0 + 2) / 10 < 1, while 0 / 10 + 2 > 1.
    assert sample(logits, bias=LogitBias(zero, zero, one * 2), penalties=penalties).tolist() == [1]


def test_a_row_ignores_its_neighbours(device: str) -> None:
    logits = torch.randn(9, 5000, device=device)
    options = Draw(
        temperature=torch.tensor([0.0, 1.0, 0.7] * 3, device=device),
        seeds=torch.arange(9, device=device) - 4,
        positions=torch.arange(9, device=device) * 3,
        top_k=torch.tensor([0, 50, 0, 2000, 0, 7, 0, 0, 1], device=device),
        top_p=torch.tensor([1.0, 0.9, 0.99, 1.0, 1.0, 0.5, 0.2, 1.0, 1.0], device=device),
        min_p=torch.tensor([0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.02, 0.0], device=device),
    )
    together = sample(logits, draw=options)
    for row in range(9):
        one = slice(row, row + 1)
        fields = (options.temperature, options.seeds, options.positions, options.top_k, options.top_p, options.min_p)
        alone = sample(logits[one], draw=Draw(*(field[one] for field in fields if field is not None)))
        assert int(alone) == int(together[row])


def test_seed_and_position_change_the_draw(device: str) -> None:
    logits = torch.zeros(1, 50_000, device=device).expand(64, -1)
    base = draw(64, device)
    tokens = sample(logits, draw=base)
    assert torch.equal(tokens, sample(logits, draw=base))
    assert len(set(tokens.tolist())) > 60
    later = Draw(base.temperature, base.seeds, base.positions + 1)
    assert (sample(logits, draw=later) != tokens).sum() > 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bitmask": torch.zeros(1, 2, dtype=torch.int32)}, "bitmask has shape"),
        ({"bitmask": torch.zeros(1, 3, dtype=torch.int64)}, "bitmask has dtype"),
        ({"draw": draw(2)}, "draw.temperature has shape"),
        ({"logits": torch.zeros(VOCAB)}, "logits has shape"),
        ({"logits": torch.zeros(1, 0)}, "pass a vocabulary of at least one token"),
        ({"out": torch.zeros(1)}, "out has dtype"),
    ],
)
def test_refusals(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        sample(**({"logits": torch.zeros(1, VOCAB)} | change))  # type: ignore[arg-type]
