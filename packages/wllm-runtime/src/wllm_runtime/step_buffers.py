"""`StepBuffers`: what a plan brings to the device, packed into one copy, and the ring of host memory it comes from.

A step's rows, cumulative counts, new blocks and draw positions have fixed places in one buffer on the device, where
CUDA graphs read them too. Each step in flight has its own entry of the ring: pinned memory that the copy reads while
the host goes on, and that the results are written to. Used by the runner only, in the order of the plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from wllm_sched.plan import StepPlan

_PADDING_ROW = (-1, 0, 0, 0)
# Bytes of a row in each field of StepFields; `cu_q` has one element more than rows.
_BYTES_PER_ROW = 8 + 8 + 16 + 4 + 12


class StepFields(NamedTuple):
    """The parts of a step's buffer, for as many rows as there are slots."""

    positions: Tensor  # int64 [rows]: of each drawn token
    scored: Tensor  # int64 [rows]: the token of the step whose logits each drawing row needs
    rows: Tensor  # int32 [rows, 4]: slot, start, count, samples
    cu_q: Tensor  # int32 [rows + 1]: where the tokens of each row begin
    entries: Tensor  # int32 [rows, 3]: slot, column of its block table, block


class RingEntry:
    """Host memory of one step: `fields` as on the device, and `results` int64 [rows], the drawn tokens."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.memory = torch.zeros(_num_bytes(num_rows), dtype=torch.uint8, pin_memory=pinned)
        self.results = torch.zeros(num_rows, dtype=torch.int64, pin_memory=pinned)
        self._positions, self._scored, self._rows, self._cu_q, self._entries = (
            field.numpy() for field in _fields(self.memory, num_rows)
        )
        self._is_busy = False

    def take(self) -> None:
        """Begin a step."""
        assert not self._is_busy, "I7: a ring buffer is refilled before its step's results were read"
        self._is_busy = True

    def give_back(self) -> None:
        """The step has run and its results have been read."""
        self._is_busy = False

    def pack(self, plan: StepPlan, num_rows: int, with_blocks: bool) -> None:
        """Write the plan, padded to `num_rows`; its new blocks only if `with_blocks`."""
        rows = plan.rows
        count = len(rows)
        table = self._rows[:count]
        table[:] = numpy.fromiter(chain.from_iterable(rows), numpy.int32, 4 * count).reshape(count, 4)
        self._rows[count:num_rows] = _PADDING_ROW
        ends = self._cu_q[1 : count + 1]
        table[:, 2].cumsum(out=ends)
        self._cu_q[count + 1 : num_rows + 1] = ends[-1]
        samples = table[:, 3] > 0
        num_samples = int(samples.sum())
        self._positions[:num_samples] = (table[:, 1] + table[:, 2])[samples]
        self._scored[:num_samples] = ends[samples] - 1
        entries = list(block_entries(plan)) if with_blocks else []
        if entries:
            self._entries[: len(entries)] = entries
        self._entries[len(entries) :, 0] = -1

    def pack_padding(self) -> None:
        """Write padding rows only."""
        self._rows[:] = _PADDING_ROW
        self._cu_q[:] = 0
        self._entries[:, 0] = -1


class StepBuffers:
    """The device's buffer and the ring, for plans of up to `num_rows` rows and `depth` steps in flight."""

    def __init__(self, num_rows: int, depth: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self._memory = torch.zeros(_num_bytes(num_rows), dtype=torch.uint8, device=device)
        self.fields = _fields(self._memory, num_rows)
        # One more than steps in flight: the next step is packed before the oldest one's results are read.
        self._ring = [RingEntry(num_rows, device) for _ in range(depth + 1)]
        self._next = 0

    def load(self, plan: StepPlan, num_rows: int, *, with_blocks: bool) -> RingEntry:
        """Send the plan, padded to `num_rows`, to the device; the entry is to be given back behind the step's event."""
        entry = self._take()
        entry.pack(plan, num_rows, with_blocks)
        self._memory.copy_(entry.memory, non_blocking=True)
        return entry

    def load_padding(self) -> RingEntry:
        """Send padding rows, which change nothing on the device."""
        entry = self._take()
        entry.pack_padding()
        self._memory.copy_(entry.memory, non_blocking=True)
        return entry

    def _take(self) -> RingEntry:
        entry = self._ring[self._next]
        entry.take()
        self._next = (self._next + 1) % len(self._ring)
        return entry


def block_entries(plan: StepPlan) -> Iterator[tuple[int, int, int]]:
    """(slot, column, block) of every new block of the plan."""
    for new in plan.new_blocks:
        for column, block_id in enumerate(new.block_ids, start=new.first):
            yield new.slot, column, block_id


def _num_bytes(num_rows: int) -> int:
    return num_rows * _BYTES_PER_ROW + 4


def _fields(memory: Tensor, num_rows: int) -> StepFields:
    parts: list[Any] = []
    start = 0
    for dtype, count, columns in (
        (torch.int64, num_rows, 1),
        (torch.int64, num_rows, 1),
        (torch.int32, num_rows, 4),
        (torch.int32, num_rows + 1, 1),
        (torch.int32, num_rows, 3),
    ):
        end = start + count * columns * dtype.itemsize
        part = memory[start:end].view(dtype)
        parts.append(part if columns == 1 else part.view(count, columns))
        start = end
    assert start == memory.numel(), f"{start} bytes of fields in a buffer of {memory.numel()}"
    return StepFields(*parts)
