"""Step data of the reference attention: which cache blocks each row reads, and what it must not see.

The rows of a step become segments. A segment is either a group of rows with one query each (decode), padded to the
longest of them, or one row with several queries (prefill). Cutting the decode rows into groups of similar length
keeps the padding small; each further group costs a fixed number of torch calls in every layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wllm_kernels.errors import InvalidArgument
from wllm_kernels.plans import AttentionPlan

# Gathering and multiplying this many padded cache elements takes about as long as one more group's torch calls
# (measured on two cores of an EPYC, float32).
_GROUP_PADDING_ELEMENTS = 96 * 1024
# One gathered group stays below 64 MiB of float32, whatever the batch.
_GROUP_ELEMENTS = 16 * 1024 * 1024
_SIZES_PER_SEGMENT = 6
_TENSORS_PER_SEGMENT = 4


class Segment(NamedTuple):
    """Rows that one batched computation serves.

    `num_rows` rows of `num_queries` queries; the queries are tokens `first_token` onwards, or, if that is -1, those
    that `tokens` lists. Only the gathered cells `first_cell:last_cell` of each row take part.
    """

    num_rows: int
    num_queries: int
    first_token: int
    first_cell: int
    last_cell: int
    causal: bool
    blocks: Tensor  # int64 [2 * num_rows * num_kv_heads * blocks], rows of the cache seen as [.., block_size, head_dim]
    tokens: Tensor  # int64 [num_rows] or [0]
    mask: Tensor  # float32, added to the scores: [num_rows * num_kv_heads, 1, cells], [num_queries, cells] or [0]
    stale: Tensor  # int64, gathered cells that no row owns and that must be zeroed, or [0]


class _Row(NamedTuple):
    row: int
    token: int
    num_queries: int
    length: int
    first_block: int
    num_blocks: int


def attention_plan(
    kv: Tensor, block_table: Tensor, seq_lens: Tensor, cu_q: Tensor, num_heads: int, causal: bool, window: int
) -> AttentionPlan:
    """The plan of a step; synchronises with the device when the lengths live on one."""
    block_size = kv.shape[3]
    rows = list(_rows(seq_lens.tolist(), cu_q.tolist(), block_size, block_table.shape[1], window))
    decode = sorted((row for row in rows if row.num_queries == 1), key=lambda row: -row.num_blocks)
    segments = [_decode_segment(group, kv, block_table, window) for group in _groups(decode, kv)]
    segments += [_prefill_segment(row, kv, block_table, causal, window) for row in rows if row.num_queries > 1]
    tensors: list[Tensor] = []
    sizes = [sum(row.num_queries for row in rows)]
    for segment in segments:
        sizes += [segment.num_rows, segment.num_queries, segment.first_token]
        sizes += [segment.first_cell, segment.last_cell, int(segment.causal)]
        tensors += [segment.blocks, segment.tokens, segment.mask, segment.stale]
    largest = max((segment.blocks.numel() for segment in segments), default=0)
    return AttentionPlan(
        causal, window, num_heads, tuple(tensors), tuple(sizes), largest * block_size * kv.shape[4],
        (block_table, seq_lens, cu_q),
    )  # fmt: skip


def segments(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Iterator[Segment]:
    """The segments of a plan."""
    for number in range(len(sizes) // _SIZES_PER_SEGMENT):
        num_rows, num_queries, first_token, first_cell, last_cell, causal = sizes[1 + number * _SIZES_PER_SEGMENT :][
            :_SIZES_PER_SEGMENT
        ]
        blocks, tokens, mask, stale = tensors[number * _TENSORS_PER_SEGMENT :][:_TENSORS_PER_SEGMENT]
        yield Segment(
            num_rows, num_queries, first_token, first_cell, last_cell, bool(causal), blocks, tokens, mask, stale
        )


def _rows(lengths: list[int], starts: list[int], block_size: int, max_blocks: int, window: int) -> Iterator[_Row]:
    for index, length in enumerate(lengths):
        count = starts[index + 1] - starts[index]
        if count == 0 or length == 0:  # a padding row: its output is zero
            continue
        if not 0 < count <= length <= max_blocks * block_size:
            raise InvalidArgument(
                f"paged_attention: row {index} has {count} queries and seq_len {length} with a block table of "
                f"{max_blocks} blocks of {block_size}; need 0 <= queries <= seq_len <= blocks * block_size"
            )
        first_cell = max(0, length - count - window + 1) if window else 0
        first_block = first_cell // block_size
        yield _Row(index, starts[index], count, length, first_block, -(-length // block_size) - first_block)


def _groups(rows: list[_Row], kv: Tensor) -> Iterator[list[_Row]]:
    block_elements = kv.shape[1:].numel()
    group: list[_Row] = []
    padding = 0
    for row in rows:
        if group:
            padding += (group[0].num_blocks - row.num_blocks) * block_elements
            elements = (len(group) + 1) * group[0].num_blocks * block_elements
            if padding > _GROUP_PADDING_ELEMENTS or elements > _GROUP_ELEMENTS:
                yield group
                group, padding = [], 0
        group.append(row)
    if group:
        yield group


def _decode_segment(group: list[_Row], kv: Tensor, block_table: Tensor, window: int) -> Segment:
    device, num_kv_heads, block_size = block_table.device, kv.shape[2], kv.shape[3]
    group = sorted(group)  # plan order, so that the queries are often one slice
    empty = torch.empty(0, dtype=torch.int64, device=device)
    first = group[0].token
    tokens = empty
    if [row.token for row in group] != list(range(first, first + len(group))):
        tokens, first = torch.tensor([row.token for row in group], device=device), -1
    table = block_table[torch.tensor([row.row for row in group], device=device)].long()
    visible = {_visible_cells(row, window, block_size) for row in group}
    if len(visible) == 1:  # equal lengths: slices do what a mask would
        row = group[0]
        offsets = torch.tensor([[row.first_block] for row in group], device=device)
        ids = table.gather(1, offsets + torch.arange(row.num_blocks, device=device))
        ((first_cell, last_cell),) = visible
        return Segment(len(group), 1, first, first_cell, last_cell, False, _block_rows(ids, kv), tokens, empty, empty)

    num_blocks = max(row.num_blocks for row in group)
    facts = torch.tensor(
        [(row.first_block, row.num_blocks, *_visible_cells(row, window, block_size)) for row in group], device=device
    )
    first_block, blocks_used, first_visible, end = facts.unsqueeze(-1).unbind(1)
    columns = torch.arange(num_blocks, device=device)
    # Entries past a row's own blocks may hold anything.
    ids = table.gather(1, (first_block + columns).clamp_(max=table.shape[1] - 1)).masked_fill_(
        columns >= blocks_used, 0
    )
    cells = torch.arange(num_blocks * block_size, device=device)
    hidden = (cells >= end) | (cells < first_visible)
    mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
    mask = mask.repeat_interleave(num_kv_heads, 0).unsqueeze(1)
    stale = (cells >= end)[:, None].expand(2, -1, num_kv_heads, -1).reshape(-1).nonzero().view(-1)
    return Segment(len(group), 1, first, 0, len(cells), False, _block_rows(ids, kv), tokens, mask, stale)


def _prefill_segment(row: _Row, kv: Tensor, block_table: Tensor, causal: bool, window: int) -> Segment:
    device, block_size = block_table.device, kv.shape[3]
    ids = block_table[row.row, row.first_block : row.first_block + row.num_blocks].long()
    base = row.first_block * block_size
    start = row.length - row.num_queries
    empty = torch.empty(0, dtype=torch.int64, device=device)
    mask = empty
    simple = causal and start == 0 and not (window and window < row.length)
    if causal and not simple:
        queries = torch.arange(start, row.length, device=device)[:, None]
        keys = torch.arange(base, row.length, device=device)
        hidden = keys > queries
        if window:
            hidden |= keys <= queries - window
        mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
    blocks = _block_rows(ids.unsqueeze(0), kv)
    return Segment(1, row.num_queries, row.token, 0, row.length - base, simple, blocks, empty, mask, empty)


def _visible_cells(row: _Row, window: int, block_size: int) -> tuple[int, int]:
    base = row.first_block * block_size
    first = max(0, row.length - window) if window else 0
    return first - base, row.length - base


def _block_rows(ids: Tensor, kv: Tensor) -> Tensor:
    num_kv_heads = kv.shape[2]
    planes = torch.arange(2 * num_kv_heads, device=ids.device).view(2, 1, num_kv_heads, 1)
    return (ids[None, :, None, :] * (2 * num_kv_heads) + planes).reshape(-1)
