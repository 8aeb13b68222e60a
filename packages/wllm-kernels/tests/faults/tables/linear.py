"""Faults in the linear layers for few tokens."""

from __future__ import annotations

from faults.fault import Table

TABLE = Table(
    tests=("test_emulator_linear.py",),
    files={
        "linear.cuh": {
            "rows of W behind the last": ("lane / 4, tiling.results - 1);", "lane / 4, tiling.results + 100);"),
            "both halves of an ungated tile are one": ("(tiling.gated ? 0 : half * 8) + lane / 4", "lane / 4"),
            "what a gate gates is a gate": ("tiling.gated ? half * tiling.results + result : result", "result"),
            "a gated tile is as wide as another": ("gated ? 8 : Shape::TILE;", "Shape::TILE;"),
            "a slot less": ("divide_up(p.inputs, SLOT_INPUTS), gated", "p.inputs / SLOT_INPUTS, gated"),
            "a lane's inputs of W are the first": ("(i64)row * p.inputs + lane % 4 * 8", "(i64)row * p.inputs"),
            "copies inputs behind the last": (
                "copy_async16(target, source.rows[half] + input, input < end)",
                "copy_async16(target, source.rows[half] + input, true)",
            ),
            "chunks of W lie over each other": ("        target += Shape::PIECE_BYTES;\n", ""),
            "every warp copies every slot": ("source.slot += blockDim.x / WARP;", "source.slot++;"),
            "tokens behind the last": ("WARP / 4, tokens - 1);", "WARP / 4, tokens + 100);"),
            "a lane's inputs of x are the first": ("x + token * stride + threadIdx.x % 4 * 8", "x + token * stride"),
            "second eight tokens are the first": ("smaller(i * 8 + (int)threadIdx.x", "smaller((int)threadIdx.x"),
            "reads inputs of x behind the last": ("if (input < end) v = load16", "v = load16"),
            "one chunk of x for both": (
                "      if (input < end) v = load16(tokens.rows[i] + input);",
                "      if (input < end) v = load16(tokens.rows[i] + slot * SLOT_INPUTS);",
            ),
            "one chunk of W for both": ("slot + chunk * Shape::HALVES * Shape::PIECE_BYTES", "slot"),
            "lower half is the upper": ("lower = load16(piece + Shape::PIECE_BYTES)", "lower = load16(piece)"),
            "halves of the operand change places": (
                "{upper.words[word], lower.words[word], upper",
                "{lower.words[word], upper.words[word], upper",
            ),
            "words of W change places": (
                "upper.words[word + 1], lower.words[word + 1]}",
                "upper.words[word], lower.words[word]}",
            ),
            "words of x change places": ("x.words[word], x.words[word + 1])", "x.words[word + 1], x.words[word])"),
            "half of a piece": ("word < 4; word += 2", "word < 2; word += 2"),
            "tokens of a pair change places": ("token + j % 2)", "token + 1 - j % 2)"),
            "sums of the lower half over the upper": ("+ output + j / 2 * 8]", "+ output]"),
            "sums of the second eight tokens over the first": ("shared[(i * 8 + token", "shared[(token"),
            "sum of a warp less": ("warp < warps; warp++", "warp < warps - 1; warp++"),
            "sums of one warp": ("shared[warp * Shape::WARP_FLOATS + token", "shared[token"),
            "writes tokens behind the last": ("i < p.tokens * tiling.width;", "i < (p.tokens + 1) * tiling.width;"),
            "writes results behind the last": ("if (result >= tiling.results) continue;", ""),
            "gate is not rounded before its activation": ("rounded<T>(value)));", "value));"),
            "gate is not rounded behind its activation": (
                "rounded<T>(activate(p.kind, rounded<T>(value)))",
                "activate(p.kind, rounded<T>(value))",
            ),
            "what is gated is not rounded": (
                "value = gate * rounded<T>(output_at(token, column + 8, bias.gated));",
                "value = gate * output_at(token, column + 8, bias.gated);",
            ),
            "another activation": ("kind == SILU ? activate<SILU>(x)", "kind == GELU ? activate<SILU>(x)"),
            "results of a token over another's": ("(i64)token * tiling.results + result;", "result;"),
            "float32 is rounded": ("((float*)p.out)[place] = value;", "((float*)p.out)[place] = rounded<T>(value);"),
            "a ring longer than its room": ("RING_BYTES = 8192;", "RING_BYTES = 16384;"),
            "no bias": ("return value + to_float(bias_of_column);", "return value;"),
            "bias of the gates for what they gate": ("column + 8, bias.gated", "column + 8, bias.plain"),
            "bias behind the last": (
                "% tiling.width), tiling.results - 1);",
                "% tiling.width), tiling.results + 4000);",
            ),
            "bias of another column": (
                "tiling.width + threadIdx.x % tiling.width)",
                "tiling.width + threadIdx.x / 2 % tiling.width)",
            ),
            "copies behind the last slot": ("if (source.slot < tiling.slots) {", "if (true) {"),
            "every block copies the first tile": ("first = blockIdx.x * tiling.width;", "first = 0;"),
        },
        "linear_norm.cuh": {
            "x is not added": ("values[j] += more[j];", ";"),
            "squares of the sum before it is rounded": (
                "totals[i] = pack<T>(values);\n        unpack(values, totals[i]);",
                "totals[i] = pack<T>(values);",
            ),
            "the residual itself is normed": ("        totals[i] = pack<T>(values);\n", ""),
            "nobody writes the new residual": ("if (p.x && piece % gridDim.x == blockIdx.x) {", "if (false) {"),
            "one block writes its part of the new residual": (
                "piece % gridDim.x == blockIdx.x",
                "piece % gridDim.x == 0 && blockIdx.x == 0",
            ),
            "new residual in one row": ("(T*)p.new_residual + (i64)token * p.inputs +", "(T*)p.new_residual +"),
            "residual of the first token": ("(const T*)p.residual + (i64)token * p.inputs +", "(const T*)p.residual +"),
            "rows of x are as far apart as long": ("token * p.x_stride + piece * N", "token * p.inputs + piece * N"),
            "tokens over each other": ("store_run(normed + token * stride +", "store_run(normed +"),
            "squares of a thread": ("squares = warp_sum(squares);", ""),
            "squares of the last piece": ("(first + i) % per_token ? *sum + squares : squares", "squares"),
            "squares of what lay there": ("(first + i) % per_token ? *sum + squares : squares", "*sum + squares"),
            "sum of a warp": ("sum += scratch[i * NORM_TOKENS + token];", "sum = scratch[i * NORM_TOKENS + token];"),
            "sums of the tokens over each other": (
                "scratch + warp * NORM_TOKENS + token;",
                "scratch + warp * NORM_TOKENS;",
            ),
            "no epsilon": ("sum / p.inputs + p.eps", "sum / p.inputs"),
            "sum instead of the mean": ("sum / p.inputs + p.eps", "sum + p.eps"),
            "no rounding before the weight": ("round_all<T>(values);", ""),
            "weight of the first piece": (
                "ahead[k] = load_run<T, N>((const T*)p.norm + piece * N);",
                "ahead[k] = load_run<T, N>((const T*)p.norm);",
            ),
            "weight of the first piece, far behind": (
                "normalise(piece, load_run<T, N>((const T*)p.norm + piece * N));",
                "normalise(piece, load_run<T, N>((const T*)p.norm));",
            ),
            "reads the weight behind its end": (
                "(int)(threadIdx.x + k * blockDim.x), p.inputs / N - 1)",
                "(int)(threadIdx.x + k * blockDim.x), p.inputs)",
            ),
            "reads pieces behind the row": (
                "token >= p.tokens || piece >= pieces) continue;",
                "token >= p.tokens) continue;",
            ),
            "reads tokens behind the last": (
                "if (token >= p.tokens || piece >= pieces) continue;",
                "if (piece >= pieces) continue;",
            ),
            "stores pieces behind the row": (
                "      if (piece >= pieces) continue;\n      store_run",
                "      store_run",
            ),
            "norms tokens behind the last": ("if (token >= p.tokens) break;", ""),
            "one token less": ("token < p.tokens; token++", "token < p.tokens - 1; token++"),
            "pieces ahead only": (
                "for (; piece < pieces; piece += blockDim.x) normalise",
                "for (; piece < 0; piece += blockDim.x) normalise",
            ),
            "one batch": ("first < items; first += NORM_BATCH", "first < NORM_BATCH; first += NORM_BATCH"),
        },
        "linear.cu": {
            "waits for a copy less": ("copy_async_wait<Shape::STAGES - 1>()", "copy_async_wait<Shape::STAGES>()"),
            "refills a slot before it is multiplied": (
                "    multiply<Shape>(sums, ring + place, fragments);\n    read",
                "    copy_slot(target + place, source, p, tiling);\n"
                "    multiply<Shape>(sums, ring + place, fragments);\n"
                "    read",
            ),
            "refills the next slot": (
                "copy_slot(target + place, source, p, tiling);",
                "copy_slot(target + (place + Shape::SLOT_BYTES) % RING_BYTES, source, p, tiling);",
            ),
            "the ring is one slot": ("place = (place + Shape::SLOT_BYTES) % RING_BYTES;", ""),
            "x of another slot": ("slot + Shape::SETS * warps, p.inputs);", "slot + 3 * warps, p.inputs);"),
            "slots of another warp": ("for (int first = warp; first <", "for (int first = 0; first <"),
            "a slot behind the last": ("if (first + i * warps < tiling.slots) multiply_slot", "multiply_slot"),
            "one set for two slots": ("multiply_slot(sets[i], first", "multiply_slot(sets[0], first"),
            "rings of two warps in one place": ("shared + warp * RING_BYTES +", "shared +"),
            "lanes of a ring in one place": ("RING_BYTES + threadIdx.x % WARP * 16;", "RING_BYTES;"),
            "rows of x are as far apart as long": ("(const T*)p.x, p.x_stride,", "(const T*)p.x, p.inputs,"),
            "tokens of the norm as far apart as in memory": (
                "normed_stride(p.inputs), p.tokens)",
                "p.inputs, p.tokens)",
            ),
            "sums of the warps over each other": ("all_sums + warp * Shape::WARP_FLOATS, sums", "all_sums, sums"),
            "the norm lies over the sums": ("(T*)(all_sums + warps * Shape::WARP_FLOATS)", "(T*)(all_sums)"),
        },
    },
)
