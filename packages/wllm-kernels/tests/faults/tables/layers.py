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
            "rounds before a weight with an offset too": ("if (p.weight_offset == 0.f) round_all", "round_all"),
            "sum instead of the mean": ("sum_of_squares / p.size + p.eps", "sum_of_squares + p.eps"),
            "no rounding before the weight": ("if (p.weight_offset == 0.f) round_all<T>(normed);", ""),
            "no offset of the weight": ("weight[i] + p.weight_offset", "weight[i]"),
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
                "i < p.size; i += team.size) {\n    float normed",
                "i <= p.size; i += team.size) {\n    float normed",
            ),
            "misses an element": (
                "i < p.size; i += team.size) {\n    float normed",
                "i < p.size - 1; i += team.size) {\n    float normed",
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
            "columns behind the row": ("if (column >= p.inter) return;", ""),
            "gate is not rounded": ("round_all<T>(gate);", ""),
            "up instead of gate": ("activate<KIND>(gate[i])", "activate<KIND>(up[i])"),
            "stride of x is its size": ("(const T*)p.x + row * p.x_stride", "(const T*)p.x + row * 2 * p.inter"),
            "first part only": ("(part * ACT_THREADS + threadIdx.x) * RUN", "threadIdx.x * RUN"),
        },
        "activation.cuh": {
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
            "rounds one of two": ("x = unpack_low<T>(pair);", ""),
            "rounds the other of two": ("y = unpack_high<T>(pair);", ""),
            "one pair less": ("pack2<T>(values[2 * i], values[2 * i + 1])", "pack2<T>(values[2 * i], values[2 * i])"),
        },
    },
)

ROPE = Table(
    tests=("test_emulator_rope.py",),
    files={
        "rope.cu": {
            "keys of the queries": ("return {KEY, index - p.num_heads};", "return {KEY, index};"),
            "values are keys": ("spans[k].in_rotary && head.role != VALUE", "spans[k].in_rotary"),
            "all columns turn": ("index * 2 * N < p.rotary_dim;", "true;"),
            "halves when interleaved": ("span.in_rotary && !p.interleaved", "span.in_rotary"),
            "sum of too few lanes": (
                "distance = 1 << p.team_log2 >> 1; distance > 0; distance /= 2) {\n    value +=",
                "distance = 1 << p.team_log2 >> 1; distance > 1; distance /= 2) {\n    value +=",
            ),
            "maximum of too few lanes": (
                "distance = 1 << p.team_log2 >> 1; distance > 0; distance /= 2) {\n    value = larger",
                "distance = 1 << p.team_log2 >> 1; distance > 1; distance /= 2) {\n    value = larger",
            ),
            "NaN looks healthy": ("a > b || a != a ? a : b", "a > b ? a : b"),
            "angles of the model's dtype are wide": (
                "if (same_type<T, float> || !p.wide_angles) return",
                "if (same_type<T, float>) return",
            ),
            "turns the other way": ("fmaf(-y, sin, x_cos)", "fmaf(y, sin, x_cos)"),
            "turns twice": ("y = fmaf(x, sin,", "y = fmaf(turned_x, sin,"),
            "product is not rounded": ("round_both<T>(x_cos, y_cos);", ""),
            "no rounding before the weight": (
                "round_all<T>(values);",
                "",
            ),
            "norm of the queries for the keys": (
                "role == KEY ? p.k_norm : nullptr",
                "role == KEY ? p.q_norm : nullptr",
            ),
            "values are normed": ("role == KEY ? p.k_norm : nullptr", "p.k_norm"),
            "no epsilon": ("/ p.head_dim + p.eps", "/ p.head_dim"),
            "position 0": ("load_angles<T, N>(p, position, spans[k].pair)", "load_angles<T, N>(p, 0, spans[k].pair)"),
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
            "reads heads behind the last": ("source + smaller(first_head + h, last_head)", "source + (first_head + h)"),
            "reads tokens behind the last": ("read_token = smaller(token, p.tokens - 1)", "read_token = token"),
            "writes heads behind the last": ("token >= p.tokens || first_head + h > last_head", "token >= p.tokens"),
            "writes tokens behind the last": ("token >= p.tokens || first", "first"),
            "first head of each team": ("team % p.teams * p.team_heads", "team % p.teams"),
            "columns behind the head": ("span.held = index * 2 * N < p.head_dim;", "span.held = true;"),
            "writes tokens without a cell": ("} else if (cell >= 0) {", "} else {"),
            "another cell": ("(u32)cell % p.block_size;", "((u32)cell + 1) % p.block_size;"),
            "values over keys": ("+ side * p.side_stride +", "+"),
            "heads of the cache over each other": ("+ head.index * p.head_stride", ""),
        }
    },
    survivors={
        "rope.cu: no clamp": "only NaN lies outside: the scale is rounded by less than half a step",
        "rope.cu: writes heads behind the last": "they write the last head to its place once more",
        "rope.cu: writes tokens behind the last": "they write the last token to its places once more",
    },
)
