"""The bookkeeping of a step on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.checks import expect_contiguous, expect_dense_rows, expect_device, expect_dtype, expect_shape


class StepInputs(NamedTuple):
    """What a model reads in one step."""

    input_ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]
    cells: Tensor  # int64 [tokens], -1 for padding
    seq_lens: Tensor  # int32 [rows]
    block_table: Tensor  # int32 [rows, blocks]


_OUTPUT_DTYPES = (torch.int64, torch.int64, torch.int64, torch.int32, torch.int32)


def step_inputs(num_tokens: int, num_rows: int, num_blocks: int, device: torch.device | str) -> StepInputs:
    """Uninitialised buffers for `prepare_step`, to be used again step after step."""
    ids, positions, cells = torch.empty(3, num_tokens, dtype=torch.int64, device=device).unbind(0)
    seq_lens = torch.empty(num_rows, dtype=torch.int32, device=device)
    block_table = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=device)
    return StepInputs(ids, positions, cells, seq_lens, block_table)


def append_blocks(block_tables: Tensor, entries: Tensor) -> None:
    """Write blocks into the tables of their slots: `block_tables` int32 [slots, max_blocks].

    `entries` int32 [E, 3] of (slot, column, block), all at different places; those of slot -1 are padding. Places are
    not checked. Raises `InvalidArgument`.
    """
    expect_shape("block_tables", block_tables, None, None)
    expect_shape("entries", entries, None, 3)
    for name, tensor in (("block_tables", block_tables), ("entries", entries)):
        expect_dtype(name, tensor, torch.int32)
        expect_device(name, tensor, block_tables)
    expect_dense_rows("block_tables", block_tables)
    expect_contiguous("entries", entries)
    dispatch.append_blocks(block_tables, entries)


def prepare_step(
    rows: Tensor,
    cu_q: Tensor,
    token_table: Tensor,
    block_tables: Tensor,
    *,
    block_size: int,
    num_tokens: int,
    num_blocks: int,
    out: StepInputs | None = None,
) -> StepInputs:
    """What the model reads for `rows` int32 [R, 4] of (slot, start, count, samples), from the tables of all slots.

    `cu_q` int32 [R + 1]: where each row's tokens begin. `token_table` int32 [slots, max_tokens]; `block_tables` int32
    [slots, max_blocks]. `num_tokens` and `num_blocks` (the block table's width) are the sizes of the result. Rows with
    slot -1 (which have samples 0) and tokens past cu_q[R] are padding: id 0, position 0, cell -1, seq_len 0, block 0.
    """
    expect_shape("rows", rows, None, 4)
    expect_shape("cu_q", cu_q, rows.shape[0] + 1)
    expect_shape("token_table", token_table, None, None)
    expect_shape("block_tables", block_tables, token_table.shape[0], None)
    for name, tensor in (("rows", rows), ("cu_q", cu_q), ("token_table", token_table), ("block_tables", block_tables)):
        expect_dtype(name, tensor, torch.int32)
        expect_device(name, tensor, rows)
        expect_dense_rows(name, tensor)
    expect_contiguous("rows", rows)
    if block_size <= 0:
        raise InvalidArgument(f"block_size is {block_size}; pass the cells of a block")
    if not 0 < num_blocks <= block_tables.shape[1]:
        raise InvalidArgument(f"num_blocks is {num_blocks}; the block tables have {block_tables.shape[1]} columns")
    if out is None:
        out = step_inputs(num_tokens, rows.shape[0], num_blocks, rows.device)
    else:
        for name, tensor in zip(("input_ids", "positions", "cells"), out[:3]):
            expect_shape(f"out.{name}", tensor, num_tokens)
        expect_shape("out.seq_lens", out.seq_lens, rows.shape[0])
        expect_shape("out.block_table", out.block_table, rows.shape[0], num_blocks)
        for name, tensor, dtype in zip(StepInputs._fields, out, _OUTPUT_DTYPES):
            expect_dtype(f"out.{name}", tensor, dtype)
            expect_device(f"out.{name}", tensor, rows)
            expect_dense_rows(f"out.{name}", tensor)
    dispatch.prepare_step(rows, cu_q, token_table, block_tables, block_size, *out)
    return out


def advance_step(
    rows: Tensor, tokens: Tensor, token_table: Tensor, lengths: Tensor, *, results: Tensor | None = None
) -> None:
    """Write each sampled token to `token_table` at (slot, start + count) and set `lengths` int32 [slots].

    `rows` are those of `prepare_step`; `tokens` int64 begins with one id for each row with samples > 0, in order. A
    slot's length becomes start + count, and one more if it sampled. Only a sampling row writes the token table (I6): a
    failed row's negative id is stored as 0, and a token past the end of the table is not stored. `results`, int64 as
    long as `tokens`, gets the tokens as they are; it may be pinned memory of the host, so that no copy has to follow.
    """
    expect_shape("rows", rows, None, 4)
    expect_dtype("rows", rows, torch.int32)
    expect_shape("tokens", tokens, None)
    expect_dtype("tokens", tokens, torch.int64)
    expect_shape("token_table", token_table, None, None)
    expect_dtype("token_table", token_table, torch.int32)
    expect_shape("lengths", lengths, token_table.shape[0])
    expect_dtype("lengths", lengths, torch.int32)
    for name, tensor in (("tokens", tokens), ("token_table", token_table), ("lengths", lengths)):
        expect_device(name, tensor, rows)
        expect_dense_rows(name, tensor)
    expect_contiguous("rows", rows)
    if results is not None:
        expect_shape("results", results, tokens.shape[0])
        expect_dtype("results", results, torch.int64)
        expect_contiguous("results", results)
    dispatch.advance_step(rows, tokens, token_table, lengths, results)
