"""Faults in the kernels between attention and the matrix products: norm, activation, rotation and cache write."""

from __future__ import annotations

from faults.fault import Table

NORM = Table(
    tests=("test_emulator_norm.py",),
    files={
        "norm.cu": {
            "sum over a warp of a longer row": (
                "team.size == WARP ? warp_sum(value) : block_sum(value, scratch)",
                "warp_sum(value)",
            ),
            "no epsilon": ("sum_of_squares / p.size + p.eps", "sum_of_squares / p.size"),
            "sum instead of the mean": ("sum_of_squares / p.size + p.eps", "sum_of_squares + p.eps"),
            "no rounding before the weight": ("rounded<T>(normed) * weight", "normed * weight"),
            "no offset of the weight": ("normed * (weight + p.weight_offset)", "normed * weight"),
            "loads pieces behind the row": (
                "if (piece >= p.pieces) break;\n    row[k] =",
                "row[k] =",
            ),
            "sums pieces behind the row": (
                "if (piece >= p.pieces) break;\n    float values[N];\n    unpack(values, row[k]);\n    if (residual)",
                "float values[N];\n    unpack(values, row[k]);\n    if (residual)",
            ),
            "writes pieces behind the row": (
                "if (piece >= p.pieces) break;\n    float values[N], weight[N];",
                "float values[N], weight[N];",
            ),
            "residual is not written": ("store_run(residual + piece * N, row[k]);", ""),
            "residual is not rounded": (
                "store_run(residual + piece * N, row[k]);\n      unpack(values, row[k]);",
                "store_run(residual + piece * N, row[k]);",
            ),
            "reads an element behind the row": (
                "i < p.size; i += team.size) {\n    float value",
                "i <= p.size; i += team.size) {\n    float value",
            ),
            "writes an element behind the row": (
                "i < p.size; i += team.size) {\n    out[i]",
                "i <= p.size; i += team.size) {\n    out[i]",
            ),
            "misses an element": (
                "i < p.size; i += team.size) {\n    out[i]",
                "i < p.size - 1; i += team.size) {\n    out[i]",
            ),
            "norms x, not the sum": ("const T* source = residual ? residual : x;", "const T* source = x;"),
            "rows behind the last": ("if (team.row >= p.rows) return;", ""),
        },
        "numeric.cuh": {
            "sum of too few lanes": (
                "distance = WARP / 2; distance > 0; distance /= 2) value += __shfl",
                "distance = WARP / 4; distance > 0; distance /= 2) value += __shfl",
            ),
            "sum of too many warps": ("warp_sum(lane < warps ? scratch[lane] : 0.f)", "warp_sum(scratch[lane])"),
            "every lane writes the warp's sum": ("if (lane == 0) scratch[warp] = value;", "scratch[warp] = value;"),
        },
    },
    survivors={"numeric.cuh: every lane writes the warp's sum": "all lanes have the same sum"},
)

ACTIVATION = Table(
    tests=("test_emulator_norm.py",),
    files={
        "activation.cu": {
            "loads behind the row": ("if (column >= p.inter) break;\n    gates_read", "gates_read"),
            "writes behind the row": ("if (column >= p.inter) break;\n    float gate", "float gate"),
            "gate is not rounded": ("rounded<T>(activate<KIND>(gate[i]))", "activate<KIND>(gate[i])"),
            "up instead of gate": ("activate<KIND>(gate[i])", "activate<KIND>(up[i])"),
            "stride of x is its size": ("(const T*)p.x + row * p.x_stride", "(const T*)p.x + row * 2 * p.inter"),
            "first part only": ("(part * ACT_RUNS * ACT_THREADS + threadIdx.x) * RUN", "threadIdx.x * RUN"),
            "sigmoid overflows": ("__fdividef(x, 1.f + __expf(-y))", "x * __expf(y) / (__expf(y) + 1.f)"),
            "tanh instead of erf": (
                "0.5f * x * (1.f + erff(x * 0.70710678118654752f))",
                "times_sigmoid(x, 1.702f * x)",
            ),
            "no cubic term": ("(1.f + 0.044715f * x * x)", "1.f"),
        },
        "elements.cuh": {
            "halves change places": (
                "values[2 * i] = unpack_low<T>(run.bits.words[i]);",
                "values[2 * i] = unpack_high<T>(run.bits.words[i]);",
            ),
            "one pair less": ("pack2<T>(values[2 * i], values[2 * i + 1])", "pack2<T>(values[2 * i], values[2 * i])"),
        },
    },
)

ROPE = Table(
    tests=("test_emulator_rope.py",),
    files={
        "rope.cu": {
            "keys of the queries": ("return {KEY, token, index - p.num_heads};", "return {KEY, token, index};"),
            "values are keys": ("span.turns = in_rotary && head.role != VALUE;", "span.turns = in_rotary;"),
            "all columns turn": ("index * 2 * N < p.rotary_dim;", "true;"),
            "halves when interleaved": ("in_rotary && !p.interleaved", "in_rotary"),
            "sum of too few lanes": (
                "distance = 1 << p.team_log2 >> 1; distance > 0; distance /= 2) {\n    value +=",
                "distance = 1 << p.team_log2 >> 1; distance > 1; distance /= 2) {\n    value +=",
            ),
            "maximum of too few lanes": (
                "distance = 1 << p.team_log2 >> 1; distance > 0; distance /= 2) {\n    value = larger",
                "distance = 1 << p.team_log2 >> 1; distance > 1; distance /= 2) {\n    value = larger",
            ),
            "NaN looks healthy": ("a > b || a != a ? a : b", "a > b ? a : b"),
            "angles are not rounded": ("values[k + i] = rounded<T>(wide[i])", "values[k + i] = wide[i]"),
            "turns the other way": ("fmaf(-y, sin, rounded<T>(x * cos))", "fmaf(y, sin, rounded<T>(x * cos))"),
            "turns twice": ("y = rounded<T>(fmaf(x, sin,", "y = rounded<T>(fmaf(turned_x, sin,"),
            "product is not rounded": ("fmaf(-y, sin, rounded<T>(x * cos))", "fmaf(-y, sin, x * cos)"),
            "no rounding before the weight": (
                "rounded<T>(values[i] * scale) * weight[i]",
                "values[i] * scale * weight[i]",
            ),
            "norm of the queries for the keys": (
                "head.role == KEY ? p.k_norm : nullptr",
                "head.role == KEY ? p.q_norm : nullptr",
            ),
            "values are normed": ("head.role == KEY ? p.k_norm : nullptr", "p.k_norm"),
            "no epsilon": ("/ p.head_dim + p.eps", "/ p.head_dim"),
            "position 0": ("load_angles<T>(sin, p, position,", "load_angles<T>(sin, p, 0,"),
            "scale may be 0": (
                "larger(team_max(p, largest) / INT8_LARGEST, F16_SMALLEST_NORMAL)",
                "team_max(p, largest) / INT8_LARGEST",
            ),
            "no clamp": (
                "fmaxf(fminf(rintf(values[i] / scale), INT8_LARGEST), -INT8_LARGEST)",
                "rintf(values[i] / scale)",
            ),
            "rounds towards 0": ("rintf(values[i] / scale)", "truncf(values[i] / scale)"),
            "scale is not stored": ("if (rank == 0) p.kv_scale[row * p.block_size + offset] = scale;", ""),
            "reads heads behind the last": ("head_of(p, smaller(item, heads - 1))", "head_of(p, item)"),
            "reads tokens behind the last": ("(i64)smaller(item, heads - 1) * p.head_dim", "(i64)item * p.head_dim"),
            "writes heads behind the last": ("if (item >= heads) return;", ""),
            "columns behind the head": ("held[k] = index * 2 * N < p.head_dim;", "held[k] = true;"),
            "writes tokens without a cell": ("if (cell < 0) return;", ""),
            "another cell": ("(u32)cell % p.block_size, side", "((u32)cell + 1) % p.block_size, side"),
            "values over keys": ("+ side * p.side_stride", ""),
            "heads of the cache over each other": ("+ head.index * p.head_stride", ""),
        }
    },
    survivors={
        "rope.cu: no clamp": "only NaN lies outside: the scale is rounded by less than half a step",
        "rope.cu: writes heads behind the last": "they write the last head to its place once more",
    },
)
