"""The sampler's kernels in the emulator: the same tokens as the reference, whatever the options and the memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import Draw, InvalidArgument, LogitBias, Penalties, dispatch, sample, sample_workspace_bytes
from wllm_kernels.device import logits as device_logits
from wllm_kernels.device import sampling
from wllm_kernels.selfcheck.agreement_tokens import make_draw, make_edits

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def draw_tokens(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """`sample` by device code: guarded logits, and a workspace of the least size, full of old values."""

    def run(logits: Tensor, **options: object) -> Tensor:
        adjusted = any(options.get(name) is not None for name in ("bias", "bitmask", "penalties"))
        size = sample_workspace_bytes(*logits.shape, adjusted=adjusted)
        workspace = emulator.guard(torch.randint(0, 256, (size,), dtype=torch.uint8))
        if logits.is_contiguous():
            logits = emulator.guard(logits)
        with monkeypatch.context() as patch:
            patch.setitem(dispatch.sample._functions, "cpu", sampling.sample)
            return sample(logits, workspace=workspace, **options)  # type: ignore[arg-type]

    return run


@pytest.fixture(params=["one slice", "slices", "small list"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one slice or of many, whose candidates fit into the list or do not."""
    if request.param != "one slice":
        monkeypatch.setattr(device_logits, "SLICE_STEP", 64)
    if request.param == "small list":
        monkeypatch.setattr(sampling, "CAPACITY", 4)


def options(rows: int, vocab: int, *, filters: bool, edits: bool) -> dict[str, object]:
    chosen: dict[str, object] = {"draw": make_draw(rows, vocab, filters=filters)}
    if edits:
        chosen |= zip(("bias", "bitmask", "penalties"), make_edits(rows, vocab))
    return chosen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("edits", [False, True])
@pytest.mark.usefixtures("_way")
def test_agreement(draw_tokens: Callable[..., Tensor], dtype: torch.dtype, filters: bool, edits: bool) -> None:
    logits = (3 * torch.randn(13, 1003)).to(dtype)
    chosen = options(13, 1003, filters=filters, edits=edits)
    assert torch.equal(draw_tokens(logits, **chosen), sample(logits, **chosen))  # type: ignore[arg-type]


@pytest.mark.parametrize("vocab", [1, 7, 33, 9001])
def test_vocabularies(draw_tokens: Callable[..., Tensor], vocab: int) -> None:
    logits = 3 * torch.randn(6, vocab)
    draw = replace(make_draw(6, 2000, filters=True), min_p=None)
    assert torch.equal(draw_tokens(logits, draw=draw), sample(logits, draw=draw))


@pytest.mark.usefixtures("_way")
def test_equal_values_stand_or_fall_together(draw_tokens: Callable[..., Tensor]) -> None:
    logits = (2 * torch.randn(1, 300)).round().expand(40, -1)
    draw = replace(make_draw(40, 200, filters=True), temperature=torch.full((40,), 1.5))
    assert torch.equal(draw_tokens(logits, draw=draw), sample(logits, draw=draw))


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("top_k", [-1, 0, 1, 2, 299, 300, 1 << 40])
@pytest.mark.usefixtures("_way")
def test_extreme_filters(draw_tokens: Callable[..., Tensor], temperature: float, top_k: int) -> None:
    logits = torch.randn(8, 300) * 4
    logits[4:, 3:] = -torch.inf
    draw = Draw(
        torch.full((8,), temperature), torch.arange(8), torch.arange(8), torch.full((8,), top_k),
        torch.tensor([0.0, 1e-30, 0.5, 0.99999994] * 2), torch.tensor([0.0, 0.0, 1.0, 1e-30] * 2),
    )  # fmt: skip
    assert torch.equal(draw_tokens(logits, draw=draw), sample(logits, draw=draw))


# One token far in front of a long tail: sums of more than 32 bits, and many keys in the interval where a cut lies.
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 0.5), (700, 1.0), (900, 0.7)])
@pytest.mark.usefixtures("_way")
def test_long_tail(draw_tokens: Callable[..., Tensor], top_k: int, top_p: float) -> None:
    logits = torch.empty(1, 1500).uniform_(-8.5, -5.0).expand(24, -1).clone()
    logits[:, 0] = 0.0
    draw = Draw(torch.ones(24), torch.arange(24), torch.arange(24), torch.full((24,), top_k), torch.full((24,), top_p))
    assert torch.equal(draw_tokens(logits, draw=draw), sample(logits, draw=draw))


def test_huge_distances(draw_tokens: Callable[..., Tensor]) -> None:
    logits = torch.randn(8, 300) * 1e30
    draw = make_draw(8, 300, filters=True)
    assert torch.equal(draw_tokens(logits, draw=draw), sample(logits, draw=draw))


@pytest.mark.usefixtures("_way")
def test_greedy_tie_goes_to_the_lowest_id(draw_tokens: Callable[..., Tensor]) -> None:
    logits = torch.full((2, 500), -3.0)
    logits[0, [131, 132, 400]] = torch.tensor([-0.0, 0.0, 0.0])
    assert draw_tokens(logits).tolist() == [131, 0]


def test_least_temperature(draw_tokens: Callable[..., Tensor]) -> None:
    seeds = torch.arange(4)
    for temperature, greedy in ((9.9e-6, True), (1e-5, False)):
        tokens = draw_tokens(torch.zeros(4, 300), draw=Draw(torch.full((4,), temperature), seeds, seeds))
        assert (tokens.tolist() == [0] * 4) == greedy


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
@pytest.mark.usefixtures("_way")
def test_rows_without_a_token_fail_alone(draw_tokens: Callable[..., Tensor], bad: float) -> None:
    logits = torch.randn(5, 300)
    logits[1, 299], logits[2] = bad, -torch.inf
    bitmask = torch.full((5, 10), -1, dtype=torch.int32)
    bitmask[3] = 0
    for draw in (None, make_draw(5, 300, filters=False), make_draw(5, 300, filters=True)):
        tokens = draw_tokens(logits, draw=draw, bitmask=bitmask)
        assert tokens[1:4].tolist() == [-1, -1, -2] and min(tokens[0], tokens[4]) >= 0


def test_adjusted_logits_are_those_of_the_reference_bit_for_bit(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, vocab = 5, 5000
    logits = torch.randn(rows, vocab).half()
    _, bitmask, penalties = make_edits(rows, vocab)
    entries = 1500  # many for one token, and more than a block looks at once
    bias = LogitBias(torch.randint(0, rows, (entries,)), torch.randint(0, 40, (entries,)), torch.randn(entries))
    bias.token_ids[::2] += vocab - 40
    expected = logits.float().index_put((bias.rows, bias.token_ids), bias.values, accumulate=True)
    allowed = (bitmask.unsqueeze(-1) >> torch.arange(32)).bitwise_and(1).flatten(1)[:, :vocab]
    expected = expected.masked_fill(allowed == 0, -torch.inf)
    for entry, (row, slot) in enumerate(zip(penalties.rows.tolist(), penalties.slots.tolist())):
        count, seen = penalties.output_counts[slot], penalties.prompt_seen[slot]
        values, repetition = expected[row], penalties.repetition[entry]
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(seen | (count > 0), repeated, values) - penalties.frequency[entry] * count
        expected[row] = values - penalties.presence[entry] * (count > 0)
    workspace = torch.empty(sample_workspace_bytes(rows, vocab), dtype=torch.uint8)
    with monkeypatch.context() as patch:
        patch.setitem(dispatch.sample._functions, "cpu", sampling.sample)
        sample(logits, bias=bias, bitmask=bitmask, penalties=penalties, workspace=workspace)
    assert torch.equal(workspace[: rows * vocab * 4].view(torch.float32).view(rows, vocab), expected)


def test_entries_for_other_rows_and_tokens_are_ignored(draw_tokens: Callable[..., Tensor]) -> None:
    logits = torch.zeros(2, 70)
    logits[:, 9] = 1.0
    bias = LogitBias(torch.tensor([0, 2, -1, 1]), torch.tensor([70, 3, 4, 5]), torch.tensor([torch.inf, 5.0, 5.0, 5.0]))
    assert draw_tokens(logits, bias=bias).tolist() == [9, 5]


def test_the_last_token_alone_in_its_group(draw_tokens: Callable[..., Tensor]) -> None:
    bias = LogitBias(torch.tensor([0]), torch.tensor([32]), torch.tensor([5.0]))
    assert draw_tokens(torch.zeros(1, 33), bias=bias).tolist() == [32]


def test_empty_lists(draw_tokens: Callable[..., Tensor]) -> None:
    logits, none = torch.randn(2, 40), torch.empty(0, dtype=torch.int64)
    penalties = Penalties(none, none, *[none.float()] * 3, none.int().view(0, 40), none.bool().view(0, 40))
    bias = LogitBias(none, none, none.float())
    assert torch.equal(draw_tokens(logits, bias=bias, penalties=penalties), logits.argmax(-1))


@pytest.mark.parametrize("first", [0, 1, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_wider_tensor(draw_tokens: Callable[..., Tensor], dtype: torch.dtype, first: int) -> None:
    wide = torch.full((6, 130), torch.nan, dtype=dtype)
    logits = wide[:, first : first + 101]
    logits.normal_()
    draw = make_draw(6, 101, filters=True)
    assert torch.equal(draw_tokens(logits, draw=draw), sample(logits, draw=draw))


def test_more_rows_than_a_launch_takes(draw_tokens: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ROWS_PER_LAUNCH", 4)
    logits = torch.randn(11, 60)
    chosen = options(11, 60, filters=True, edits=True)
    assert torch.equal(draw_tokens(logits, **chosen), sample(logits, **chosen))  # type: ignore[arg-type]


def test_order_of_blocks_does_not_matter(
    emulator: Emulator, draw_tokens: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_logits, "SLICE_STEP", 64)
    logits, draw = torch.randn(9, 700), make_draw(9, 700, filters=True)
    expected = draw_tokens(logits, draw=draw)
    for seed in range(1, 8):
        emulator.seed = seed
        assert torch.equal(draw_tokens(logits, draw=draw), expected)


@pytest.mark.parametrize("rows", [100, pytest.param(5000, marks=pytest.mark.full)])
@pytest.mark.parametrize("filters", [{}, {"top_k": 7}, {"top_p": 0.9, "min_p": 0.05}])
def test_draws_of_one_distribution(draw_tokens: Callable[..., Tensor], rows: int, filters: dict[str, float]) -> None:
    logits = torch.randn(1, 40).expand(rows, -1)
    seeds = torch.arange(rows)
    columns = {name: torch.full((rows,), value) for name, value in filters.items()}
    draw = Draw(torch.full((rows,), 0.8), seeds, seeds * 3, **columns)
    tokens = draw_tokens(logits, draw=draw)
    assert torch.equal(tokens, sample(logits, draw=draw))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 70, dtype=torch.float64)}, r"logits has dtype torch\.float64; device code takes"),
        ({"logits": torch.zeros(70, 2).T}, r"logits has strides \(1, 2\); pass a tensor of dense rows"),
        ({"top_k": torch.zeros(2, 2, dtype=torch.int64)[:, 0]}, r"top_k has strides \(2,\); pass a contiguous tensor"),
        (
            {"workspace": torch.zeros(10, dtype=torch.uint8)},
            r"workspace has 10 bytes at 0x.*; pass .* contiguous bytes",
        ),
    ],
)
def test_refusals(emulator: Emulator, change: dict[str, Tensor], message: str) -> None:
    names = ("logits", "temperature", "top_k", *range(15), "workspace", "out")
    defaults = {"logits": torch.zeros(2, 70), "out": torch.zeros(2, dtype=torch.int64)}
    with pytest.raises(InvalidArgument, match=message):
        sampling.sample(*(change.get(str(name), defaults.get(str(name))) for name in names))
