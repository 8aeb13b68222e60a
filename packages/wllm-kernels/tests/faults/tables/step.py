"""Faults in the bookkeeping of a step and in the copies of blocks."""

from __future__ import annotations

from faults.fault import Table

STEP = Table(
    tests=("test_emulator_step.py",),
    files={
        "step.cu": {
            "entries of padding": ("if (slot >= 0) params.block_tables", "params.block_tables"),
            "entries behind the last": ("if (index >= params.num_entries) return;", ""),
            "first entries only": (
                "blockIdx.x * STEP_THREADS + threadIdx.x;\n  if (index >=",
                "threadIdx.x;\n  if (index >=",
            ),
            "fields of another entry": ("params.entries + ENTRY_FIELDS * index", "params.entries + index"),
            "table of another slot": ("slot * params.tables_stride + fields[1]", "fields[1]"),
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
            "writes behind the table": ("if (end >= p.max_tokens) return;", ""),
            "writes for rows that do not sample": ("if (!samples) return;", ""),
            "tokens behind the list": ("token_index < p.num_tokens;", "true;"),
            "results without memory": ("p.results && has_token", "has_token"),
            "results without a token": ("p.results && has_token", "p.results"),
            "no results at the end of a table": (
                "if (p.results && has_token) p.results[token_index] = token;\n  if (end >= p.max_tokens) return;",
                "if (end >= p.max_tokens) return;\n  if (p.results && has_token) p.results[token_index] = token;",
            ),
            "results are valid ids": (
                "p.results[token_index] = token;",
                "p.results[token_index] = larger<i64>(token, 0);",
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
            "pieces behind the block": ("piece < p.pieces ? smaller(COPY_BATCH", "true ? smaller(COPY_BATCH"),
            "tangled pieces behind the block": ("|| piece >= p.pieces) return;", ") return;"),
            "pairs behind the last": ("smaller(COPY_BATCH, p.num_pairs - first)", "COPY_BATCH"),
            "tangled pairs behind the last": ("pair >= p.num_pairs || !is_tangled", "!is_tangled"),
            "writes before it has read": (
                "(p, first + k) + piece);\n  }",
                "(p, first + k) + piece);\n"
                "    if (!p.scratch) write_piece(target_of<Piece>(p, first + k) + piece, held[k]);\n  }",
            ),
            "sources and targets change places": ("pair + p.source_column]", "pair + 1 - p.source_column]"),
            "first batch only": ("blockIdx.x / p.parts * COPY_BATCH", "0"),
            "first part only": ("blockIdx.x % p.parts * COPY_THREADS + threadIdx.x", "threadIdx.x"),
            "targets may be sources": ("contains(sets.sources, target_block(p, pair)) ||", ""),
            "sources may be targets": ("|| contains(sets.targets, source_block(p, pair))", ""),
            "tangled pairs are copied at once too": ("if (p.scratch && is_tangled(p, sets, first + k)) continue;", ""),
            "looks at the first pairs only": (
                "pair += COPY_THREADS) {\n    insert",
                "pair += p.num_pairs) {\n    insert",
            ),
            "looks for tangles among the first pairs": (
                "pair += COPY_THREADS) found",
                "pair += p.num_pairs) found",
            ),
            "asks one thread for tangles": ("__syncthreads_or(found)", "found"),
            "sets start full": ("store16(shared + 16 * i, {{0, 0, 0, 0}});", ""),
            "sets start half full": ("i < 2 * SET_WORDS / 4; i +=", "i < SET_WORDS / 4; i +="),
            "sets of one word": ("&set[bit / 32]", "&set[0]"),
            "stays in scratch": ("move_tangled<Piece, true>(p, sets, piece);", ""),
            "one block of scratch": ("p.scratch + pair * p.scratch_stride", "p.scratch"),
        }
    },
    survivors={
        "blocks.cu: sets start full": "all pairs are tangled then: slower, not wrong",
        "blocks.cu: sets start half full": "all pairs are tangled then: slower, not wrong",
    },
)
