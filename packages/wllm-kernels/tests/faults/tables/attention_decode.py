"""Faults in decode attention and its plan."""

from __future__ import annotations

from faults.fault import Table

_ONE_ORDER = "memory has one order here; only a GPU can tell"

TABLE = Table(
    tests=("test_attention_decode.py",),
    files={
        "attention_work.cuh": {
            "length beyond the table": ("smaller(seq_lens[index], capacity)", "seq_lens[index]"),
            "tiles of whole queries": (
                "divide_up(row.queries * group, TILE_LINES)",
                "divide_up(row.queries, TILE_LINES) * divide_up(group, TILE_LINES)",
            ),
            "queries from the first cell": ("row.length - row.queries + query_of_line", "query_of_line"),
            "lines behind the last query": ("smaller(line / group, row.queries - 1)", "line / group"),
            "causal ends early": ("query_position(row, last_line, group) + 1", "query_position(row, last_line, group)"),
            "causal is ignored": ("causal ? query_position(row, last_line, group) + 1 : row.length", "row.length"),
            "window of the last line": (
                "window ? query_position(row, first_line, group)",
                "window ? query_position(row, last_line, group)",
            ),
            "one part less": ("count_units(cells, unit_cells) - 1;", "count_units(cells, unit_cells) - 2;"),
            "segments of the first tile": (
                "visible_cells(row, last_tile, group, causal, window).end",
                "visible_cells(row, 0, group, causal, window).end",
            ),
            "cells in front of 0": ("larger(first, 0) / SLICE_CELLS", "first / SLICE_CELLS"),
            "no unit for a line that sees nothing": (
                "larger(divide_up(cells.end - cells.first, unit_cells), 1)",
                "divide_up(cells.end - cells.first, unit_cells)",
            ),
        },
        "attention_plan.cu": {
            "long rows too": ("if (!is_short_row(row.queries, p.group, row.length)) return {0, 0};", ""),
            "segments of one head": ("{p.num_kv_heads * count_tiles(", "{count_tiles("),
            "rows behind the last": ("index < p.rows ? plan.work[index] : RowWork{0, 0}", "plan.work[index]"),
            "no units of earlier rounds": ("const int before = total +", "const int before ="),
            "counters are not cleared": ("plan.arrivals[i] = 0;", ";"),
            "more chunks than blocks": ("if (chunks > p.blocks) return IMPOSSIBLE;", ""),
            "no last chunk": (
                "larger(divide_up(chained_units, p.blocks), 1)",
                "larger(chained_units / p.blocks, 1)",
            ),
            "no gaps between chained segments": (": units + CHAIN_GAP;", ": units;"),
            "aligned segments are not": ("divide_up(units, cut.chunk) * cut.chunk : units", "units : units"),
            "aligned chunks run into the next": ("cut.aligned ? segment_start + units : total", "total"),
            "row in front": ("(values[middle] <= value ? low : high)", "(values[middle] < value ? low : high)"),
            "samples of other rows": ("if (index % sample == 0) samples", "samples"),
            "rows between samples": (
                "index += find_last(plan.units_before + index, smaller(sample, p.rows - index), unit);",
                "",
            ),
            "first segment of the row": ("return {index, member, segment_start", "return {index, 0, segment_start"),
        },
        "attention_decode_slice.cuh": {
            "no zeros behind the last cell": (
                "copy_async16(target + Shape::PLANE_BYTES, source.values + distance, cell < source.cells);",
                "copy_async16(target + Shape::PLANE_BYTES, source.values + distance, true);",
            ),
            "copies a cell behind the last": (
                "copy_async16(target, source.keys + distance, cell < source.cells);",
                "copy_async16(target, source.keys + distance, cell <= source.cells);",
            ),
            "whole slices of gaps": ("source.cells >= SLICE_CELLS && source.cell_bytes == Shape::CHUNKS * 16", "true"),
            "last slice is whole": ("source.cells >= SLICE_CELLS &&", ""),
            "one side is not swizzled": (
                "Shape::offset(lane / Shape::CHUNKS, lane % Shape::CHUNKS);",
                "(lane / Shape::CHUNKS * Shape::LINE_CHUNKS + lane % Shape::CHUNKS) * 16;",
            ),
            "swizzle stays": ("offset ^ ((cells ^ chunks) & 7) * 16", "offset"),
            "no carry of chunks": ("chunks & ~7 : chunks", "0 : chunks"),
            "places of whole rounds": ("WARP % Shape::CHUNKS ? Shape::offset(cell, chunk)", "false ? 0"),
            "swizzle of half the cells": ("chunk ^ (cell & 7) : chunk", "chunk ^ (cell & 3) : chunk"),
            "too many pieces": ("if (PIECES % WARP && piece >= PIECES) continue;", ""),
            "scales of keys for values": ("lane < 2 ? source.key_scales : source.value_scales", "source.key_scales"),
            "half the scales": ("lane % 2 * 8, source.cells > 0", "0, source.cells > 0"),
            "bias of values": ("subtract_f16x2(pair, 0x64806480u)", "subtract_f16x2(pair, 0x64006400u)"),
            "bias of keys": ("scores[n][j] = -key_bias[j / 2];", "scores[n][j] = 0.f;"),
            "sign of int8": ("word ^ 0x80808080u", "word"),
            "bytes change places": (
                "widen_biased<Cached, 0, 1>(word), b1 = widen_biased<Cached, 2, 3>(word)",
                "widen_biased<Cached, 0, 2>(word), b1 = widen_biased<Cached, 1, 3>(word)",
            ),
            "even and odd change places": (
                "make_float4(even[2 * half], odd[2 * half], even[2 * half + 1], odd[2 * half + 1])",
                "make_float4(odd[2 * half], even[2 * half], odd[2 * half + 1], even[2 * half + 1])",
            ),
            "dimensions of 16-bit queries": (
                "4 * column + 2 * half : 2 * column",
                "2 * column + 8 * half : 2 * column",
            ),
            "last chunk of an odd number": (
                "keys + (single ? Shape::offset(cell, i) : Shape::moved(pair, 0, i))",
                "keys + Shape::moved(pair, 0, i)",
            ),
        },
        "attention_decode.cu": {
            "slice of another warp": ("Shape::UNIT_CELLS + threadIdx.x / WARP * SLICE_CELLS", "Shape::UNIT_CELLS"),
            "guesses any row": ("|| row >= (u32)p.rows ||", "||"),
            "guesses any head": ("|| kv_head >= (u32)p.num_kv_heads) return;", ") return;"),
            "guesses any cell": ("if (cell >= (u32)p.max_blocks * p.block_size) return;", ""),
            "guesses any block": ("if (block >= (u32)p.num_blocks) return;", ""),
            "looks behind the last cell": ("if (unit < part.end_unit && cell < part.segment.cells.end)", "if (true)"),
            "looks up once": ("first_unit + WARP};", "first_unit + 1000};"),
            "cells are not counted": (
                "unit < part.end_unit ? part.segment.cells.end - first_cell_of_slice<Shape>(part, unit) : 0;",
                "SLICE_CELLS;",
            ),
            "another head's scales": ("* p.num_kv_heads + part.segment.kv_head) *", "* p.num_kv_heads) *"),
            "values of keys": (
                "shared_address(ring.stage(s)) + Shape::PLANE_BYTES);",
                "shared_address(ring.stage(s)));",
            ),
            "waits for one stage less": (
                "copy_async_wait<Shape::STAGES - Shape::SLICES>();",
                "copy_async_wait<Shape::STAGES - Shape::SLICES + 1>();",
            ),
            "second slice of the first unit": (
                "first_cell_of_slice<Shape>(part, unit + s)",
                "first_cell_of_slice<Shape>(part, unit)",
            ),
            "slices attended twice": ("unit += Shape::SLICES) {", "unit++) {"),
            "sum of two lanes": ("sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);", ""),
            "tokens of no row": ("clear_tokens<Shape>(p, tokens_of_rows);", ""),
            "clears the last token": (
                "clear_tokens<Shape>(p, tokens_of_rows);",
                "clear_tokens<Shape>(p, tokens_of_rows - 1);",
            ),
            "part behind the chunk": ("smaller(start.end - segment_start, units)", "units"),
            "parts of gaps": ("if (first < last)", "if (true)"),
            "no gap behind a segment": ("segment_start += CHAIN_GAP + units_of", "segment_start += units_of"),
            "long rows are next": ("} while (!is_short_row(row.queries, p.group, row.length));", "} while (false);"),
        },
        "attention_decode_lines.cuh": {
            "queries behind the row": ("exists ? *pair : 0u", "*pair"),
            "window is one longer": (
                "p.window ? position - p.window + 1 : 0;\n    lines.end",
                "p.window ? position - p.window : 0;\n    lines.end",
            ),
            "line sees the next token": (
                "p.causal ? position + 1 : part.row.length, end_of_part",
                "p.causal ? position + 2 : part.row.length, end_of_part",
            ),
            "no scale of keys": ("if constexpr (Shape::SCALED) scores[n][j] *= scales.keys[n][j % 2];", ""),
            "no scale of values": ("weight * scales[s].values[n][j] : weight", "weight : weight"),
            "scale in the sum": ("lines.sum[i] += weight;", "lines.sum[i] += weight * scales[s].values[n][j];"),
            "no scale of queries": ("lines.scale[i] *= __uint_as_float", "__uint_as_float"),
            "scale of two lanes": ("largest = fmaxf(largest, __shfl_xor_sync(WHOLE_WARP, largest, 2));", ""),
            "queries of 0": ("larger(__float_as_uint(largest) >> 23, 9u)", "(__float_as_uint(largest) >> 23)"),
            "scale of an unused cell": ("scales.values[n][j] = 0.f;", ";"),
            "no softcap": ("if (p.cap_scale != 0.f)", "if (false)"),
            "no rescale of sums": ("lines.sum[i] *= shrink[i];", ""),
            "no rescale of values": ("sums[tile][j] *= shrink[j / 2];", ";"),
            "rescale of one line": ("shrink[0] != 1.f || shrink[1] != 1.f", "shrink[0] != 1.f"),
            "maximum of two lanes": ("maximum = fmaxf(maximum, __shfl_xor_sync(WHOLE_WARP, maximum, 2));", ""),
            "weights of hidden cells": (
                "lines.maximum[i] > LOWEST ? lines.maximum[i] : 0.f",
                "lines.maximum[i]",
            ),
            "hidden cells": ("if (hidden[0]) scores[n][j] = LOWEST;", ""),
            "cells in front of the window": ("{cell < lines.first[0] ||", "{"),
            "all lines see the last cells": ("first_cell + SLICE_CELLS <= lines.all_end", "true"),
            "all lines see the first cells": ("first_cell >= lines.all_first &&", ""),
            "units of the next part": ("smaller(all_end, end_of_part)", "all_end"),
            "queries of two lanes": ("sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);", ""),
        },
        "attention_decode_merge.cuh": {
            "no share of the sum": ("merged.sum += statistics[i].y * share;", "merged.sum += statistics[i].y;"),
            "no share of the values": (
                "merged.values[2] += values[i].z * share;",
                "merged.values[2] += values[i].z;",
            ),
            "values of earlier results": ("merged.values[j] *= old_share;", ";"),
            "sum of earlier results": ("merged.sum *= old_share;", ""),
            "results behind the last": ("if (first + j < count) {", "{"),
            "lines behind the row": (
                "smaller(TILE_LINES, part.row.queries * p.group - part.segment.tile * TILE_LINES)",
                "TILE_LINES",
            ),
            "NaN for lines that see nothing": ("merged.sum > 0.f ? 1.f / merged.sum : 0.f", "1.f / merged.sum"),
            "counter stays": ("if (last) *counter = 0;", ""),
            "merges too early": ("expected - 1;", "expected - 2;"),
            "places of two parts are one": ("2 * (first_block + i) + (i == 0 ? 1 : 0)", "2 * (first_block + i)"),
            "first level only": ("if (root) return;", "return;"),
            "nodes of the first level": ("index / width * width", "index"),
        },
    },
    survivors={
        "attention_decode_merge.cuh: places of two parts are one": "blocks begin in order here: the one that ends a "
        "segment comes last, and has merged it before it begins the next",
        "attention_decode_slice.cuh: copies a cell behind the last": "its key is hidden",
        "attention_decode.cu: attend_part: __syncwarp(); #1": f"the next matrix load meets all lanes; {_ONE_ORDER}",
        "attention_decode.cu: attend_part: __syncwarp(); #2": f"the last matrix load meets all lanes; {_ONE_ORDER}",
        "attention_work.cuh: causal is ignored": "cells that no line sees are read, and hidden",
        "attention_decode_slice.cuh: last chunk of an odd number": "reads a neighbour's chunk, which is not multiplied",
    },
)
