"""The bookkeeping of a step in plain torch: what the rows read before the model runs and what they write after it."""

from __future__ import annotations

import torch
from torch import Tensor


def append_blocks(block_tables: Tensor, entries: Tensor) -> None:
    """Write each entry's block into the table of its slot; entries of slot -1 are padding."""
    slot, column, block = entries[entries[:, 0] >= 0].unbind(1)
    block_tables[slot.long(), column.long()] = block


def prepare_step(
    rows: Tensor,
    cu_q: Tensor,
    token_table: Tensor,
    block_tables: Tensor,
    block_size: int,
    input_ids: Tensor,
    positions: Tensor,
    cells: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
) -> None:
    """Fill the model's inputs from the device tables; padding gets id 0, position 0, cell -1, length 0, block 0."""
    slot, start, count, _ = rows.unbind(1)
    real = slot >= 0
    safe_slot = slot.clamp(min=0)
    seq_lens.copy_(torch.where(real, start + count, 0))
    block_table.copy_(block_tables.index_select(0, safe_slot)[:, : block_table.shape[1]] * real[:, None])

    token = torch.arange(input_ids.shape[0], dtype=cu_q.dtype, device=cu_q.device)
    row = torch.searchsorted(cu_q[1:], token, right=True)
    owned = row < rows.shape[0]
    if not rows.shape[0]:
        for padded, value in ((input_ids, 0), (positions, 0), (cells, -1)):
            padded.fill_(value)
        return
    row.clamp_(max=rows.shape[0] - 1)
    owned &= real[row]
    token_slot = safe_slot[row].long()
    position = torch.where(owned, start[row] + token - cu_q[row], 0).long()
    positions.copy_(position)
    input_ids.copy_(torch.where(owned, token_table[token_slot, position], 0))
    block = block_tables[token_slot, position // block_size].long()
    cells.copy_(torch.where(owned, block * block_size + position % block_size, -1))


def advance_step(rows: Tensor, tokens: Tensor, token_table: Tensor, lengths: Tensor, results: Tensor | None) -> None:
    """Store each sampling row's token behind its last one and set the length of every row's slot."""
    rows = rows[rows[:, 0] >= 0]
    slot, end, samples = rows[:, 0].long(), (rows[:, 1] + rows[:, 2]).long(), rows[:, 3] > 0
    lengths[slot] = (end + samples).to(lengths.dtype)
    # The last token of a full context has no place and needs none: nothing runs after it.
    stored = samples & (end < token_table.shape[1])
    # A failed row (-1) may already be part of the next launched step: give that step an id it can look up.
    stored_tokens = stored[samples]
    if results is not None:
        results[: len(stored_tokens)] = tokens[: len(stored_tokens)]
    kept = tokens[: len(stored_tokens)].clamp(min=0)[stored_tokens]
    token_table[slot[stored], end[stored]] = kept.to(token_table.dtype)
