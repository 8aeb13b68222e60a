"""Faults in prefill attention and its plan."""

from __future__ import annotations

from faults.fault import Table

TABLE = Table(
    tests=("test_attention_prefill.py",),
    files={
        "attention_prefill_plan.cu": {
            "rows behind the last": ("if (row >= p.rows) return 0;", ""),
            "short rows too": ("queries > 0 && !is_short_row(queries, p.group, p.seq_lens[row])", "queries > 0"),
            "no last tile": ("divide_up(queries * p.group, tile_lines)", "queries * p.group / tile_lines"),
            "sum of too few lanes": ("if (lane >= distance) value += other;", "if (lane > distance) value += other;"),
            "its own warp twice": ("if (i < warp) sum += warp_sums[i];", "if (i <= warp) sum += warp_sums[i];"),
            "no earlier rounds": ("before += total;", ""),
        },
        "attention_prefill.cuh": {
            "chunks are not swizzled alike": ("(pair % PAIRS * 32)) + pair / PAIRS * PAIRS * 32", "0) + pair * 32"),
            "window is one longer": ("larger(t.first_end - p.window, 0)", "larger(t.first_end - p.window - 1, 0)"),
            "row of the tile before": ("p.tile_ends[index] <= tile", "p.tile_ends[index] < tile"),
            "rows behind the last": ("index < p.rows && p.tile_ends[index] <= tile", "p.tile_ends[index] <= tile"),
            "length beyond the table": ("smaller(p.seq_lens[t.row], p.max_blocks * p.block_size)", "p.seq_lens[t.row]"),
            "tile of another row": ("(p.tile_ends[t.row] - 1 - tile)", "(p.tile_ends[t.row] - tile)"),
            "phase of the first tile": ("t.phase = t.first_line % p.group;", "t.phase = 0;"),
            "lines behind the row": ("chunk * 16, line_of_row < t.num_lines", "chunk * 16, true"),
            "stale blocks": ("seen ? p.block_table", "true ? p.block_table"),
            "values behind the end": ("return line >= first && line < end;", "return line >= first;"),
            "values in front of the window": ("return line >= first && line < end;", "return line < end;"),
            "keys of the next head": ("kv_head * p.head_bytes +", "kv_head * p.head_bytes * 0 +"),
            "keys for values": ("PLANE * p.plane_bytes", "0"),
            "another cell": ("cell * p.cell_bytes;\n  if", "0;\n  if"),
            "scales of another cell": ("kv_head * p.scale_head_bytes + cell * 2", "kv_head * p.scale_head_bytes"),
            "block of the slice before": (
                "block = look_up<Shape>(p, t, token + Shape::KEYS);",
                "block = look_up<Shape>(p, t, token);",
            ),
            "unsigned bytes": ("(float)(i8)pair * scale", "(float)(u8)pair * scale"),
            "no wait for the last but one": (
                "copy_async_wait<Shape::SLOTS - 2>();",
                "copy_async_wait<Shape::SLOTS - 1>();",
            ),
        },
        "attention_prefill.cu": {
            "keys change places": (
                "keys += swizzled<CHUNKS>(lane / 16 * 8 + lane % 8, lane / 8 % 2);",
                "keys += swizzled<CHUNKS>(lane % 16, lane / 16);",
            ),
            "no softcap": ("if (p.cap_scale != 0.f)", "if (false)"),
            "no mask": ("if (needs_mask<Shape>(p, t, key))", "if (false)"),
            "mask one tile late": ("first_key + Shape::KEYS > t.first_end", "first_key > t.first_end"),
            "no mask of the window": ("first_key < t.last_end - p.window)", "false)"),
            "line sees the next token": (
                "t.first_end + (t.phase + line) / p.group",
                "t.first_end + (t.phase + line) / p.group + 1",
            ),
            "line without its phase": ("(t.phase + line) / p.group", "line / p.group"),
            "maximum of two lanes": (
                "return fmaxf(largest, __shfl_xor_sync(WHOLE_WARP, largest, 2));",
                "return largest;",
            ),
            "NaN of a line that has seen nothing": (
                "maximum == minus_infinity() ? 0.f : maximum * score_scale",
                "maximum * score_scale",
            ),
            "no rescale of sums": ("a.sums[f][half] *= factor;", ""),
            "no rescale of outputs": ("a.outputs[f][n][2 * half + 1] *= factor;", ""),
            "rescale of one line": (
                "maxima[0] != a.maxima[f][0] || maxima[1] != a.maxima[f][1]",
                "maxima[0] != a.maxima[f][0]",
            ),
            "rescale by some": ("if (__any_sync(WHOLE_WARP, rose)) rescale", "if (rose) rescale"),
            "sum of two lanes": ("sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);", ""),
            "no division": ("sum > 0.f ? reciprocal_fast(sum) : 0.f", "1.f"),
            "outputs behind the row": ("if (line_of_row >= t.num_lines) break;", ""),
            "slices across blocks": ("first_seen(p, t) & ~15", "first_seen(p, t)"),
            "slot that is read": (
                "fill(Constant<Shape::SLOTS>(), key, previous_slot<Shape>(slot));",
                "fill(Constant<Shape::SLOTS>(), key, slot);",
            ),
            "same slot": (
                "slot = next_slot<Shape>(slot);\n    if (p.cap_scale",
                "if (p.cap_scale",
            ),
            "tiles behind the last": ("if (t.row == p.rows) return;\n  const int warp_line", "const int warp_line"),
        },
    },
    survivors={
        "attention_prefill.cu: rescale by some": "each line rises for itself; the vote keeps the branch whole",
        "attention_prefill.cu: tiles behind the last": "they have no line and no key: they do nothing, only later",
    },
)
