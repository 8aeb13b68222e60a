"""The bookkeeping ops against loops over rows."""

from __future__ import annotations

import random

import pytest
import torch

from wllm_kernels import InvalidArgument, advance_step, append_blocks, prepare_step, step_inputs

SLOTS, MAX_TOKENS, MAX_BLOCKS, BLOCK = 6, 40, 10, 4


def make_step(seed: int) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    choose = random.Random(seed)
    rows = []
    for slot in choose.sample(range(SLOTS), choose.randint(1, SLOTS)):
        count = choose.choice([1, 1, 2, 9])
        rows.append((slot, choose.randint(0, MAX_TOKENS - count), count, choose.randint(0, 1)))
    rows += [(-1, 0, 1, 0)] * choose.randint(0, 2)
    return rows, [sum(row[2] for row in rows[:end]) for end in range(len(rows) + 1)]


@pytest.mark.parametrize("seed", range(20))
def test_prepare_step(device: str, seed: int) -> None:
    rows, cu_q = make_step(seed)
    torch.manual_seed(seed)
    token_table = torch.randint(0, 1000, (SLOTS, MAX_TOKENS), dtype=torch.int32)
    block_tables = torch.randint(0, 50, (SLOTS, MAX_BLOCKS), dtype=torch.int32)
    num_tokens, num_blocks = cu_q[-1] + seed % 3, 7
    buffers = step_inputs(num_tokens, len(rows), num_blocks, device)
    result = prepare_step(
        torch.tensor(rows, dtype=torch.int32, device=device),
        torch.tensor(cu_q, dtype=torch.int32, device=device),
        token_table.to(device),
        block_tables.to(device),
        block_size=BLOCK,
        num_tokens=num_tokens,
        num_blocks=num_blocks,
        out=buffers if seed % 2 else None,
    )
    ids, positions, cells = [0] * num_tokens, [0] * num_tokens, [-1] * num_tokens
    for (slot, start, count, _), first in zip(rows, cu_q):
        for i in range(count if slot >= 0 else 0):
            position = start + i
            ids[first + i], positions[first + i] = int(token_table[slot, position]), position
            cells[first + i] = int(block_tables[slot, position // BLOCK]) * BLOCK + position % BLOCK
    assert result.input_ids.tolist() == ids
    assert result.positions.tolist() == positions
    assert result.cells.tolist() == cells
    assert result.seq_lens.tolist() == [start + count if slot >= 0 else 0 for slot, start, count, _ in rows]
    for row, (slot, *_) in zip(result.block_table.tolist(), rows):
        assert row == (block_tables[slot, :num_blocks].tolist() if slot >= 0 else [0] * num_blocks)


@pytest.mark.parametrize("seed", range(20))
def test_only_sampling_rows_write_the_token_table(device: str, seed: int) -> None:
    rows, _ = make_step(seed)
    table = torch.randint(0, 1000, (SLOTS, MAX_TOKENS), dtype=torch.int32, device=device)
    lengths = torch.full((SLOTS,), 77, dtype=torch.int32, device=device)
    expected_table, expected_lengths = table.tolist(), lengths.tolist()
    tokens = iter(range(5000, 6000))
    drawn = []
    for slot, start, count, samples in rows:
        if slot < 0:
            continue
        expected_lengths[slot] = start + count + samples
        if samples:
            drawn.append(next(tokens))
            if start + count < MAX_TOKENS:
                expected_table[slot][start + count] = drawn[-1]
    advance_step(
        torch.tensor(rows, dtype=torch.int32, device=device),
        torch.tensor(drawn, dtype=torch.int64, device=device),
        table,
        lengths,
    )
    assert table.tolist() == expected_table
    assert lengths.tolist() == expected_lengths


def test_failed_row_stores_a_valid_id(device: str) -> None:
    table = torch.full((1, 8), 9, dtype=torch.int32, device=device)
    lengths = torch.zeros(1, dtype=torch.int32, device=device)
    rows = torch.tensor([[0, 2, 1, 1]], dtype=torch.int32, device=device)
    advance_step(rows, torch.tensor([-1], device=device), table, lengths)
    assert table.tolist() == [[9, 9, 9, 0, 9, 9, 9, 9]] and lengths.tolist() == [4]


def test_tokens_behind_those_of_the_rows_are_left_alone(device: str) -> None:
    table = torch.full((2, 4), 9, dtype=torch.int32, device=device)
    rows = torch.tensor([[1, 0, 1, 1], [-1, 0, 0, 0]], dtype=torch.int32, device=device)
    advance_step(rows, torch.tensor([5, 6], device=device), table, torch.zeros(2, dtype=torch.int32, device=device))
    assert table.tolist() == [[9, 9, 9, 9], [9, 5, 9, 9]]


def test_append_blocks(device: str) -> None:
    tables = torch.zeros(3, 4, dtype=torch.int32, device=device)
    append_blocks(tables, torch.tensor([[2, 1, 7], [-1, 0, 9], [0, 3, 8]], dtype=torch.int32, device=device))
    assert tables.tolist() == [[0, 0, 0, 8], [0, 0, 0, 0], [0, 7, 0, 0]]
    with pytest.raises(InvalidArgument, match=r"entries has shape \[1, 4\]"):
        append_blocks(tables, torch.zeros(1, 4, dtype=torch.int32, device=device))


def test_results_are_the_tokens_as_they_are(device: str) -> None:
    table = torch.full((2, 4), 9, dtype=torch.int32, device=device)
    # The second row is full: its token has no place in the table and is a result all the same.
    rows = torch.tensor([[1, 0, 1, 1], [0, 3, 1, 1]], dtype=torch.int32, device=device)
    results = torch.zeros(2, dtype=torch.int64, pin_memory=device != "cpu")
    lengths = torch.zeros(2, dtype=torch.int32, device=device)
    advance_step(rows, torch.tensor([-2, 6], device=device), table, lengths, results=results)
    assert lengths.tolist() == [5, 2]  # waits for the device
    assert results.tolist() == [-2, 6]
    assert table.tolist() == [[9, 9, 9, 9], [9, 0, 9, 9]]


def test_int64_tables_are_refused() -> None:
    rows, cu_q = torch.zeros(1, 4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    tables = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(InvalidArgument, match=r"token_table has dtype torch\.int64; pass torch\.int32"):
        prepare_step(rows, cu_q, tables, tables, block_size=4, num_tokens=1, num_blocks=1)


def test_no_rows(device: str) -> None:
    tables = torch.ones(2, 4, dtype=torch.int32, device=device)
    rows, cu_q = tables.new_empty(0, 4), tables.new_zeros(1)
    ids, positions, cells, seq_lens, _ = prepare_step(
        rows, cu_q, tables, tables, block_size=4, num_tokens=3, num_blocks=1
    )
    assert (ids.tolist(), positions.tolist(), cells.tolist()) == ([0] * 3, [0] * 3, [-1] * 3)
    assert not seq_lens.numel()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": torch.zeros(1, 8, dtype=torch.int32)[:, ::2]}, "rows has strides"),
        (
            {"rows": torch.zeros(2, 5, dtype=torch.int32)[:, :4], "cu_q": torch.zeros(3, dtype=torch.int32)},
            "contiguous",
        ),
        ({"block_size": 0}, "block_size is 0"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    tables = torch.zeros(2, 4, dtype=torch.int32)
    arguments: dict[str, object] = {
        "rows": torch.zeros(1, 4, dtype=torch.int32), "cu_q": torch.zeros(2, dtype=torch.int32), "token_table": tables,
        "block_tables": tables, "block_size": 4, "num_tokens": 1, "num_blocks": 1,
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match=message):
        prepare_step(**(arguments | change))  # type: ignore[arg-type]
