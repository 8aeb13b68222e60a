"""Faults in attention without tensor cores."""

from __future__ import annotations

from faults.fault import Table

TABLE = Table(
    tests=("test_attention_plain.py",),
    files={
        "attention_plain.cu": {
            "causal ends early": ("p.causal ? position + 1", "p.causal ? position"),
            "causal is ignored": ("p.causal ? position + 1 : length", "length"),
            "window is one longer": ("position - p.window + 1", "position - p.window"),
            "window begins below 0": ("larger(0, position - p.window + 1)", "position - p.window + 1"),
            "row of the token before": ("cu_q[middle + 1] > token", "cu_q[middle + 1] >= token"),
            "tokens of no row": ("if (row == p.num_rows) return {nullptr, 0, 0};", ""),
            "reads behind the last key": ("smaller(key, visible.last - 1)", "key"),
            "weights behind the last key": (
                "key < visible.last ? exp2_fast(score - maximum) : 0.f",
                "exp2_fast(score - maximum)",
            ),
            "columns behind the head": ("column < head_dim ? to_float(row[column]) : 0.f", "to_float(row[column])"),
            "one column less": ("return column < head_dim ?", "return column < head_dim - 1 ?"),
            "no rescale of the sum": ("seen.sum * rescale + weight", "seen.sum + weight"),
            "no rescale of the values": ("seen.values[head][i] *= rescales[head];", ""),
            "no rescale in the merge": (
                "results[warp].values[head][column] * rescale",
                "results[warp].values[head][column]",
            ),
            "no division": ("0.f : value / sum", "0.f : value"),
            "NaN without keys": ("sum == 0.f ? 0.f : value / sum", "value / sum"),
            "heads of the next KV head": ("head < num_heads ? column_of", "true ? column_of"),
            "no scale of keys": ("* cell.key_scale * p.scale", "* p.scale"),
            "no scale of values": ("weight * cell.value_scale", "weight"),
            "scale of another side": ("scales[p.num_kv_heads * p.block_size]", "scales[p.block_size]"),
            "no softcap": ("if (p.softcap != 0.f)", "if (false)"),
            "maximum of too few keys": (
                "distance = HEADS; distance < WARP; distance *= 2) {\n    value = fmaxf",
                "distance = HEADS; distance < WARP / 2; distance *= 2) {\n    value = fmaxf",
            ),
            "sum of too few keys": (
                "distance = HEADS; distance < WARP; distance *= 2) value +=",
                "distance = HEADS; distance < WARP / 2; distance *= 2) value +=",
            ),
            "keys instead of values": ("cache + p.kv_value_stride, offsets", "cache, offsets"),
            "heads are not counted": ("(i64)kv_head * p.group + first_head", "(i64)kv_head * p.group"),
            "length beyond the table": ("smaller(p.seq_lens[row], p.capacity)", "p.seq_lens[row]"),
            "another cell": ("cell = key % p.block_size", "cell = (key + 1) % p.block_size"),
        }
    },
)
