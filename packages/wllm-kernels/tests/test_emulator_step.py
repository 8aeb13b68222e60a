"""The kernels for a step's bookkeeping and for block copies in the emulator against the reference."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import reference
from wllm_kernels.device import blocks, step

SLOTS, MAX_TOKENS, MAX_BLOCKS, BLOCK = 600, 40, 10, 4


def make_rows(seed: int, num_rows: int) -> list[list[int]]:
    """Rows of (slot, start, count, samples); some are padding, some sample, some are full."""
    choose = random.Random(seed)
    rows = []
    for slot in choose.sample(range(SLOTS), num_rows):
        count = choose.choice([0, 1, 1, 2, 9])
        start = choose.choice([MAX_TOKENS - count, choose.randint(0, MAX_TOKENS - count)])
        samples = choose.randint(0, 1)
        rows.append([-1, 0, count, samples] if choose.random() < 0.2 else [slot, start, count, samples])
    return rows


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_append_blocks(emulator: Emulator, count: int) -> None:
    places = torch.randperm(SLOTS * MAX_BLOCKS)[:count]
    slots = torch.where(torch.rand(count) < 0.2, -1, places // MAX_BLOCKS)
    entries = emulator.guard(torch.stack((slots, places % MAX_BLOCKS, torch.randint(0, 50, (count,))), 1).int())
    # The first row is where the table of slot -1, of padding, would lie.
    tables = [torch.full((1 + SLOTS, MAX_BLOCKS + 3), 77, dtype=torch.int32) for _ in range(2)]
    step.append_blocks(tables[0][1:, :MAX_BLOCKS], entries)
    reference.append_blocks(tables[1][1:, :MAX_BLOCKS], entries)
    assert torch.equal(*tables)
    assert int((tables[0] != 77).sum()) == int((slots >= 0).sum())


@pytest.mark.parametrize(("seed", "num_rows"), [(0, 1), (1, 7), (2, 33), (3, 300)])
@pytest.mark.parametrize("spare", [0, 3])
def test_prepare_step(emulator: Emulator, seed: int, num_rows: int, spare: int) -> None:
    rows = emulator.guard(torch.tensor(make_rows(seed, num_rows), dtype=torch.int32))
    cu_q = emulator.guard(torch.cat((torch.zeros(1), rows[:, 2].cumsum(0))).int())
    # Tokens behind the table's last column and blocks behind num_blocks belong to another tensor.
    token_table = torch.randint(0, 1000, (SLOTS, MAX_TOKENS + 8), dtype=torch.int32)[:, :MAX_TOKENS]
    block_tables = emulator.guard(torch.randint(0, 50, (SLOTS, MAX_BLOCKS), dtype=torch.int32))
    num_tokens = int(cu_q[-1]) + spare
    results = []
    for run in (step.prepare_step, reference.prepare_step):
        outputs = [emulator.guard(torch.full((num_tokens,), 77)) for _ in range(3)]
        table = torch.full((num_rows, 9), 77, dtype=torch.int32)
        outputs += [emulator.guard(torch.full((num_rows,), 77, dtype=torch.int32)), table[:, :7]]
        run(rows, cu_q, token_table, block_tables, BLOCK, *outputs)
        assert bool((table[:, 7:] == 77).all())
        results.append(outputs)
    for have, want in zip(*results):
        assert torch.equal(have, want)


def test_a_wide_block_table(emulator: Emulator) -> None:
    rows = torch.tensor([[1, 3, 1, 0], [-1, 0, 0, 0], [0, 0, 1, 0]], dtype=torch.int32)
    tables = torch.arange(2 * 600, dtype=torch.int32).view(2, 600)
    outputs = [torch.zeros(2, dtype=torch.int64) for _ in range(3)]
    lens, table = torch.zeros(3, dtype=torch.int32), emulator.guard(torch.full((3, 600), 77, dtype=torch.int32))
    step.prepare_step(rows, torch.tensor([0, 1, 1, 2], dtype=torch.int32), tables, tables, 4, *outputs, lens, table)
    assert torch.equal(table, torch.stack((tables[1], torch.zeros(600, dtype=torch.int32), tables[0])))
    assert lens.tolist() == [4, 0, 1]


@pytest.mark.parametrize(("seed", "num_rows"), [(0, 1), (1, 7), (2, 33), (3, 256), (4, 600)])
def test_advance_step(emulator: Emulator, seed: int, num_rows: int) -> None:
    emulator.seed = seed
    rows = emulator.guard(torch.tensor(make_rows(seed, num_rows), dtype=torch.int32))
    tokens = emulator.guard(torch.randint(-2, 6, (int((rows[:, 3] > 0).sum()),)))
    tables = [torch.full((SLOTS, MAX_TOKENS + 8), 7, dtype=torch.int32) for _ in range(2)]
    # The first element is where the length of slot -1, of padding, would lie.
    lengths = [torch.full((1 + SLOTS,), 7, dtype=torch.int32) for _ in range(2)]
    # Padding rows do not sample, so that the last of the results stay as they are.
    results = [emulator.guard(torch.full_like(tokens, 7)) for _ in range(2)]
    step.advance_step(rows, tokens, tables[0][:, :MAX_TOKENS], lengths[0][1:], results[0])
    reference.advance_step(rows, tokens, tables[1][:, :MAX_TOKENS], lengths[1][1:], results[1])
    assert torch.equal(*tables) and torch.equal(*lengths) and torch.equal(*results)


def test_a_row_without_a_token_gets_a_valid_id(emulator: Emulator) -> None:
    rows = torch.tensor([[0, 1, 1, 1], [1, 2, 1, 1]], dtype=torch.int32)
    tokens, table = emulator.guard(torch.tensor([5])), torch.full((2, 4), 9, dtype=torch.int32)
    results = emulator.guard(torch.tensor([0]))
    step.advance_step(rows, tokens, table, torch.zeros(2, dtype=torch.int32), results)
    step.advance_step(rows, tokens, table, torch.zeros(2, dtype=torch.int32), None)
    assert results.tolist() == [5]
    assert table.tolist() == [[9, 9, 5, 9], [9, 9, 9, 0]]


def cache(num_blocks: int, block_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randint(-100, 100, (num_blocks, *block_shape)).to(dtype)


# Blocks of whole 16-byte pieces, of more than a block of threads has, and of an odd number of bytes.
@pytest.mark.parametrize(
    ("block_shape", "dtype"), [((2, 4), torch.float32), ((2, 2100), torch.int8), ((7,), torch.int8)]
)
@pytest.mark.parametrize("num_pairs", [0, 1, 8, 9, 20])
def test_copy_blocks(emulator: Emulator, block_shape: tuple[int, ...], dtype: torch.dtype, num_pairs: int) -> None:
    # Any source and every target once: chains and circles are likely.
    sources, targets = torch.randint(0, 24, (num_pairs,)), torch.randperm(24)[:num_pairs]
    pairs = emulator.guard(torch.stack((sources, targets), 1))
    have = emulator.guard(cache(24, block_shape, dtype))
    want = have.clone()
    emulator.seed = num_pairs
    blocks.copy_blocks(have, pairs)
    reference.copy_blocks(want, pairs)
    assert torch.equal(have, want)


@pytest.mark.parametrize("copy", [blocks.copy_blocks, reference.copy_blocks])
def test_blocks_that_change_places(emulator: Emulator, copy: Callable[[Tensor, Tensor], None]) -> None:
    kv = torch.arange(12.0).view(3, 4)
    copy(kv, torch.tensor([[0, 1], [1, 2], [2, 0]]))
    assert torch.equal(kv, torch.arange(12.0).view(3, 4)[[2, 0, 1]])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("reader", [0, 290])
def test_a_target_that_another_batch_reads(emulator: Emulator, reader: int, seed: int) -> None:
    # 300 pairs, of which only the last one's target is read, by one other. The seed is the order of the blocks.
    emulator.seed = seed
    pairs = torch.stack((torch.arange(300), torch.arange(300, 600)), 1)
    pairs[-1, 1] = reader
    have = cache(600, (16,), torch.int8)
    want = have.clone()
    blocks.copy_blocks(have, pairs)
    reference.copy_blocks(want, pairs)
    assert torch.equal(have, want)


def test_blocks_whose_numbers_look_alike(emulator: Emulator) -> None:
    # The kernel remembers numbers modulo 65,536.
    pairs = torch.stack((torch.arange(20), torch.arange(65530, 65550)), 1)
    have = cache(65550, (16,), torch.int8)
    want = have.clone()
    blocks.copy_blocks(have, pairs)
    reference.copy_blocks(want, pairs)
    assert torch.equal(have, want)


def test_copies_within_one_layer(emulator: Emulator) -> None:
    layers = cache(5, (3, 2, 8), torch.float32)
    want = layers.clone()
    pairs = torch.tensor([[0, 4], [4, 1]])
    blocks.copy_blocks(layers[:, 1], pairs)
    reference.copy_blocks(want[:, 1], pairs)
    assert torch.equal(layers, want)


@pytest.mark.parametrize("to_host", [True, False])
@pytest.mark.parametrize("num_pairs", [1, 11])
def test_swap_blocks(emulator: Emulator, to_host: bool, num_pairs: int) -> None:
    tensors = cache(16, (2, 12), torch.float16), cache(12, (2, 12), torch.float16)
    pairs = torch.stack((torch.randperm(16)[:num_pairs], torch.randperm(12)[:num_pairs]), 1)
    kv, host = (emulator.guard(tensor) for tensor in tensors)
    blocks.swap_blocks(kv, host, pairs, to_host)
    reference.swap_blocks(*tensors, pairs, to_host)
    assert torch.equal(kv, tensors[0]) and torch.equal(host, tensors[1])
