"""Faults in the bookkeeping of a step and in the copies of blocks."""

from __future__ import annotations

from faults.fault import Table

STEP = Table(
    tests=("test_emulator_step.py",),
    files={
        "step.cu": {
            "row of the token before": ("p.cu_q[middle + 1] > token", "p.cu_q[middle + 1] >= token"),
            "tokens of no row": ("if (index < p.num_rows) {\n    const Row row", "{\n    const Row row"),
            "padding rows have tokens": ("if (row.slot >= 0) {\n      const int at", "{\n      const int at"),
            "rows start at 0": ("row.start + token - p.cu_q[index]", "token - p.cu_q[index]"),
            "block of the next cell": ("+ at / p.block_size]", "+ (at + 1) / p.block_size]"),
            "cell within another block": ("+ at % p.block_size", "+ (at + 1) % p.block_size"),
            "length without the chunk": ("row.slot >= 0 ? row.start + row.count : 0", "row.slot >= 0 ? row.start : 0"),
            "columns behind the table": ("if (column >= p.num_blocks) return;", ""),
            "table of a padding row": (
                "row.slot >= 0 ? p.block_tables[row.slot * p.tables_stride + column] : 0",
                "p.block_tables[row.slot * p.tables_stride + column]",
            ),
            "stride of another table": ("row.slot * p.tables_stride + column", "row.slot * p.block_stride + column"),
            "tokens behind the last": ("if (token < params.num_tokens) prepare_token", "prepare_token"),
            "first part of a wide table": ("% params.row_parts * STEP_THREADS + threadIdx.x", "* 0 + threadIdx.x"),
            "length without the new token": ("end + (samples ? 1 : 0)", "end"),
            "writes behind the table": ("if (!samples || end >= p.max_tokens) return;", "if (!samples) return;"),
            "writes for rows that do not sample": ("if (!samples || end >=", "if (end >="),
            "tokens behind the list": (
                "token_index < p.num_tokens ? p.tokens[token_index] : -1",
                "p.tokens[token_index]",
            ),
            "id of a failed row": ("(int)larger<i64>(token, 0)", "(int)token"),
            "rows behind the last": ("if (index < params.num_rows) row =", "row ="),
            "padding rows sample": ("row.slot >= 0 && row.samples > 0", "row.samples > 0"),
            "counts itself": ("(1u << lane) - 1)", "(2u << lane) - 1)"),
            "counts its own warp": ("if (other < warp) token_index", "if (other <= warp) token_index"),
            "forgets earlier rounds": ("before += warp_counts[other];", ""),
            "advances padding rows": ("if (row.slot >= 0) advance_row", "advance_row"),
        }
    },
)

BLOCKS = Table(
    tests=("test_emulator_step.py",),
    files={
        "blocks.cu": {
            "pieces behind the block": ("if (piece >= p.pieces) return;", ""),
            "reads pairs behind the last": (
                "if (pair >= p.num_pairs) break;\n    if (!p.second_launch) {",
                "if (!p.second_launch) {",
            ),
            "writes pairs behind the last": (
                "if (pair >= p.num_pairs) break;\n    const bool detour",
                "const bool detour",
            ),
            "writes before it has read": (
                "p.source_stride) + piece);",
                "p.source_stride) + piece);\n"
                "      if (!p.scratch) {\n"
                "        write_piece((Piece*)(p.target + target_block(p, pair) * p.target_stride) + piece, held[k]);\n"
                "      }",
            ),
            "sources and targets change places": ("pair + p.source_column]", "pair + 1 - p.source_column]"),
            "first batch only": ("blockIdx.x / p.parts * COPY_BATCH", "0"),
            "first part only": ("blockIdx.x % p.parts * COPY_THREADS + threadIdx.x", "threadIdx.x"),
            "nothing goes over scratch": ("p.scratch ? targets_that_are_sources(p, first) : 0", "0"),
            "looks at the first sources only": (
                "pair < p.num_pairs; pair += COPY_THREADS",
                "pair < COPY_THREADS; pair += COPY_THREADS",
            ),
            "looks at the first pair of a batch": ("target_block(p, first + k) ?", "target_block(p, first) ?"),
            "forgets what it found": ("if (threadIdx.x == 0) *found = 0;", ""),
            "stays in scratch": ("} else if (detour || !p.second_launch) {", "} else if (!p.second_launch) {"),
            "another block of scratch": (
                "p.scratch + pair * p.scratch_stride) + piece, held",
                "p.scratch) + piece, held",
            ),
        }
    },
    survivors={
        "blocks.cu: forgets what it found": "more goes over scratch than must: slower, not wrong",
    },
)
