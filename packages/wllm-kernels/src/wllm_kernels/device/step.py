"""Launch of the kernels for the bookkeeping of a step."""

from __future__ import annotations

from torch import Tensor

from wllm_kernels.device.kernel import Kernel

_THREADS, _WARP = 256, 32
_APPEND = Kernel("step", "append_blocks", "2Qqi4x", _THREADS, overlaps=True)
_PREPARE = Kernel("step", "prepare_step", "9Q3q6i", _THREADS, overlaps=True)
_ADVANCE = Kernel("step", "advance_step", "5Qq3i4x", _THREADS, shared_bytes=4 * _THREADS // _WARP, overlaps=True)


def append_blocks(block_tables: Tensor, entries: Tensor) -> None:
    """Write each entry's block into the table of its slot; entries of slot -1 are padding."""
    count = entries.shape[0]
    if count:
        _APPEND.launch(
            block_tables.device, (-(-count // _THREADS), 1, 1), entries.data_ptr(), block_tables.data_ptr(),
            block_tables.stride(0), count,
        )  # fmt: skip


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
    num_rows, num_blocks = block_table.shape
    num_tokens = input_ids.shape[0]
    token_parts, row_parts = -(-num_tokens // _THREADS), -(-num_blocks // _THREADS)
    parts = token_parts + num_rows * row_parts
    if parts:
        _PREPARE.launch(
            rows.device, (parts, 1, 1), rows.data_ptr(), cu_q.data_ptr(), token_table.data_ptr(),
            block_tables.data_ptr(), input_ids.data_ptr(), positions.data_ptr(), cells.data_ptr(), seq_lens.data_ptr(),
            block_table.data_ptr(), token_table.stride(0), block_tables.stride(0), block_table.stride(0), num_rows,
            num_tokens, num_blocks, block_size, token_parts, row_parts,
        )  # fmt: skip


def advance_step(rows: Tensor, tokens: Tensor, token_table: Tensor, lengths: Tensor, results: Tensor | None) -> None:
    """Store each sampling row's token behind its last one and set the length of every row's slot."""
    if rows.shape[0]:
        _ADVANCE.launch(
            rows.device, (1, 1, 1), rows.data_ptr(), tokens.data_ptr(), token_table.data_ptr(), lengths.data_ptr(),
            0 if results is None else results.data_ptr(), token_table.stride(0), rows.shape[0], tokens.shape[0],
            token_table.shape[1],
        )  # fmt: skip
