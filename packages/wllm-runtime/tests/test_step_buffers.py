"""A plan arrives on the device as it is, padded, and no step's memory is used again too early."""

from __future__ import annotations

import pytest
import torch

from wllm_runtime.step_buffers import StepBuffers, block_entries
from wllm_sched.plan import NewBlocks, Row, StepPlan

CPU = torch.device("cpu")
PLAN = StepPlan(
    step=0,
    rows=(Row(3, 17, 1, 1), Row(0, 8, 1, 1), Row(5, 32, 20, 0), Row(1, 0, 7, 1)),
    new_blocks=(NewBlocks(5, 2, (40, 41)), NewBlocks(3, 1, (7,))),
    num_decode_rows=2,
)


def test_fields_hold_the_plan() -> None:
    buffers = StepBuffers(6, 2, CPU)
    buffers.load(PLAN, 4, with_blocks=True)
    fields = buffers.fields
    assert fields.rows[:4].tolist() == [list(row) for row in PLAN.rows]
    assert fields.cu_q[:5].tolist() == [0, 1, 2, 22, 29]
    # Of the rows that draw: where their token will be, and the token of the step that it follows.
    assert fields.positions[:3].tolist() == [18, 9, 7]
    assert fields.scored[:3].tolist() == [0, 1, 28]
    assert fields.entries[:3].tolist() == [[5, 2, 40], [5, 3, 41], [3, 1, 7]]
    assert set(fields.entries[3:, 0].tolist()) == {-1}
    assert list(block_entries(PLAN)) == [(5, 2, 40), (5, 3, 41), (3, 1, 7)]


def test_padding_rows_have_no_slot_and_no_tokens() -> None:
    buffers = StepBuffers(6, 2, CPU)
    long_plan = StepPlan(step=0, rows=tuple(Row(slot, 5, 1, 1) for slot in range(6)), num_decode_rows=6)
    for _ in range(3):  # every entry of the ring has held other rows
        buffers.load(long_plan, 6, with_blocks=True).give_back()
    buffers.load(PLAN, 6, with_blocks=False)
    fields = buffers.fields
    assert fields.rows[4:].tolist() == [[-1, 0, 0, 0]] * 2
    assert fields.cu_q.tolist() == [0, 1, 2, 22, 29, 29, 29]
    assert set(fields.entries[:, 0].tolist()) == {-1}


def test_a_step_of_padding() -> None:
    buffers = StepBuffers(6, 1, CPU)
    buffers.load(PLAN, 4, with_blocks=True)
    buffers.load_padding()
    fields = buffers.fields
    assert set(fields.rows[:, 0].tolist()) == {-1} and not fields.cu_q.any()
    assert set(fields.entries[:, 0].tolist()) == {-1}


def test_an_entry_is_refilled_only_when_it_was_given_back() -> None:
    buffers = StepBuffers(6, 2, CPU)
    entries = [buffers.load(PLAN, 4, with_blocks=True) for _ in range(3)]
    assert len({entry.memory.data_ptr() for entry in entries}) == 3
    with pytest.raises(AssertionError, match="I7"):
        buffers.load(PLAN, 4, with_blocks=True)
    entries[0].give_back()
    assert buffers.load(PLAN, 4, with_blocks=True) is entries[0]
