"""The ops around a step and the sampler on a device against their references on the CPU: see `agreement`."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from wllm_kernels import (
    Draw,
    LogitBias,
    Penalties,
    StepInputs,
    advance_step,
    append_blocks,
    copy_blocks,
    logprobs,
    prepare_step,
    reference,
    sample,
    step_inputs,
    swap_blocks,
)

Options = TypeVar("Options", Draw, LogitBias, Penalties)
SLOTS, MAX_TOKENS, MAX_BLOCKS, BLOCK = 40, 600, 40, 16


def make_rows(seed: int, num_rows: int) -> tuple[Tensor, Tensor, int]:
    """Rows of (slot, start, count, samples), some of them padding, their `cu_q`, and how many sample."""
    choose = random.Random(seed)
    rows = []
    for slot in choose.sample(range(SLOTS), num_rows):
        count = choose.choice([1, 1, 1, 2, 70])
        rows.append((slot, choose.randint(0, MAX_TOKENS - count), count, choose.randint(0, 1)))
    rows += [(-1, 0, 1, 0)] * 3
    counts = torch.tensor([0, *(row[2] for row in rows)])
    return torch.tensor(rows, dtype=torch.int32), counts.cumsum(0).int(), sum(row[3] for row in rows)


def check_step(device: str, seed: int, num_rows: int) -> None:
    """`prepare_step`, `advance_step` and `append_blocks`, exactly."""
    rows, cu_q, num_samples = make_rows(seed, num_rows)
    token_table = torch.randint(0, 1000, (SLOTS, MAX_TOKENS), dtype=torch.int32)
    block_tables = torch.randint(0, 5000, (SLOTS, MAX_BLOCKS), dtype=torch.int32)
    lengths = torch.zeros(SLOTS, dtype=torch.int32)
    num_tokens = int(cu_q[-1]) + 5
    expected = step_inputs(num_tokens, len(rows), MAX_BLOCKS - 2, "cpu")
    reference.prepare_step(rows, cu_q, token_table, block_tables, BLOCK, *expected)
    out = StepInputs(*(torch.full_like(tensor, -9, device=device) for tensor in expected))
    moved = [tensor.to(device, copy=True) for tensor in (rows, cu_q, token_table, block_tables)]
    prepare_step(*moved, block_size=BLOCK, num_tokens=num_tokens, num_blocks=MAX_BLOCKS - 2, out=out)
    for actual, wanted in zip(out, expected):
        assert torch.equal(actual.cpu(), wanted)

    tokens = torch.randint(-1, 1000, (num_samples,))
    table, moved_lengths = moved[2], lengths.to(device, copy=True)
    # On a GPU the results lie in memory of the host, which the kernel writes.
    results = torch.full_like(tokens, -9, pin_memory=device != "cpu")
    advance_step(moved[0], tokens.to(device), table, moved_lengths, results=results)
    reference.advance_step(rows, tokens, token_table, lengths, None)
    assert torch.equal(table.cpu(), token_table) and torch.equal(moved_lengths.cpu(), lengths)
    assert torch.equal(results, tokens)

    places = torch.randperm(SLOTS * MAX_BLOCKS)[:num_rows]
    slots = torch.where(places % 5 == 0, -1, places // MAX_BLOCKS)
    entries = torch.stack((slots, places % MAX_BLOCKS, places), 1).int()
    append_blocks(moved[3], entries.to(device))
    reference.append_blocks(block_tables, entries)
    assert torch.equal(moved[3].cpu(), block_tables)


def check_copy_blocks(device: str, dtype: torch.dtype, num_pairs: int) -> None:
    """Chains and cycles of blocks, in a cache whose layers lie between each other."""
    layers = torch.randint(-100, 100, (2 * num_pairs, 3, 2, 2, 16, 64)).to(dtype)
    expected = layers.clone()
    # Targets differ; sources may be targets of other pairs.
    pairs = torch.stack((torch.randint(0, 2 * num_pairs, (num_pairs,)), torch.randperm(2 * num_pairs)[:num_pairs]), 1)
    moved = layers.to(device, copy=True)
    copy_blocks(moved[:, 1], pairs.to(device))
    reference.copy_blocks(expected[:, 1], pairs)
    assert torch.equal(moved.cpu().float(), expected.float())


def check_swap_blocks(device: str, dtype: torch.dtype, num_pairs: int) -> None:
    """Some blocks of one layer to the host and back, to other places."""
    layers = torch.randint(-100, 100, (2 * num_pairs, 3, 2, 2, 16, 64)).to(dtype)
    host = torch.zeros(num_pairs + 3, *layers.shape[2:], dtype=dtype)
    expected, expected_host = layers.clone(), host.clone()
    if device != "cpu":
        host = host.pin_memory()
    moved = layers.to(device, copy=True)
    for to_host in (True, False):
        pairs = torch.stack((torch.randperm(2 * num_pairs)[:num_pairs], torch.randperm(num_pairs + 3)[:num_pairs]), 1)
        swap_blocks(moved[:, 1], host, pairs.to(device), to_host=to_host)
        reference.swap_blocks(expected[:, 1], expected_host, pairs, to_host)
    assert torch.equal(moved.cpu().float(), expected.float())
    assert torch.equal(host.float(), expected_host.float())


def make_draw(rows: int, vocab: int, *, filters: bool) -> Draw:
    """Greedy and random rows side by side, and filters that some rows do not use."""
    index = torch.arange(rows)
    temperature = torch.where(index % 4 == 0, 0.0, 0.5 + index % 3 * 0.4)
    draw = Draw(temperature, seeds=index * 7919 - 3, positions=index + 11)
    if not filters:
        return draw
    return replace(
        draw,
        top_k=torch.where(index % 3 == 0, 0, torch.randint(1, vocab, (rows,))),
        top_p=torch.where(index % 5 == 0, 1.0, torch.rand(rows)),
        min_p=torch.where(index % 2 == 0, 0.0, torch.rand(rows) * 0.1),
    )


def to_device(options: Options, device: str) -> Options:
    """The same options in the memory of a device."""
    tensors: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(options)}
    return replace(options, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})


def make_edits(rows: int, vocab: int) -> tuple[LogitBias, Tensor, Penalties]:
    """Biases, an allowed set for some rows, and penalties for every second row."""
    entries = 3 * rows
    bias = LogitBias(torch.arange(rows).repeat(3), torch.randint(0, vocab, (entries,)), torch.randn(entries) * 5)
    bitmask = torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocab // 32)), dtype=torch.int64).int()
    bitmask[::3] = -1
    penalised = torch.arange(0, rows, 2)
    count = len(penalised)
    penalties = Penalties(
        penalised, torch.randperm(count), 1 + torch.rand(count), torch.rand(count), torch.rand(count) - 0.5,
        torch.randint(0, 3, (count, vocab), dtype=torch.int32), torch.rand(count, vocab) < 0.2,
    )  # fmt: skip
    return bias, bitmask, penalties


def check_sample(device: str, dtype: torch.dtype, rows: int, vocab: int, *, filters: bool, edits: bool) -> None:
    """The same tokens; of the random rows one may differ, at a near tie."""
    logits = (torch.randn(rows, vocab) * 3).to(dtype)
    logits[3, vocab // 2] = torch.nan
    draw = make_draw(rows, vocab, filters=filters)
    bias, bitmask, penalties = make_edits(rows, vocab) if edits else (None, None, None)
    expected = sample(logits, draw=draw, bias=bias, bitmask=bitmask, penalties=penalties)
    actual = sample(
        logits.to(device),
        draw=to_device(draw, device),
        bias=None if bias is None else to_device(bias, device),
        bitmask=None if bitmask is None else bitmask.to(device),
        penalties=None if penalties is None else to_device(penalties, device),
    ).cpu()
    greedy = draw.temperature == 0
    assert torch.equal(actual[greedy], expected[greedy])
    assert int(actual[3]) == -1
    assert int((actual != expected).sum()) <= 1, (actual, expected)


def check_logprobs(device: str, dtype: torch.dtype, rows: int, vocab: int, top_n: int) -> None:
    """Values within float rounding; ranks and ids exactly, for logits that differ."""
    # bfloat16 knows few values: equal logits would make the order of the best a matter of taste.
    logits = torch.stack([torch.randperm(vocab) for _ in range(rows)]).float().div_(vocab / 12).to(dtype)
    ids = torch.randint(0, vocab, (rows,))
    expected, actual = logprobs(logits, ids, top_n), logprobs(logits.to(device), ids.to(device), top_n)
    torch.testing.assert_close(actual.logprob.cpu(), expected.logprob, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(actual.top_logprobs.cpu(), expected.top_logprobs, rtol=1e-5, atol=1e-4)
    assert torch.equal(actual.rank.cpu(), expected.rank)
    if dtype == torch.float32:
        assert torch.equal(actual.top_ids.cpu(), expected.top_ids)
