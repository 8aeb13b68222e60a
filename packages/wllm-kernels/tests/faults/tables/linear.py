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
            "a gated tile is as wide as another": ("gated ? 8 : TILE;", "TILE;"),
            "a slot less": ("divide_up(p.inputs, SLOT_INPUTS), gated", "p.inputs / SLOT_INPUTS, gated"),
            "a lane's inputs of W are the first": ("(i64)row * p.inputs + lane % 4 * 8", "(i64)row * p.inputs"),
            "copies inputs behind the last": (
                "copy_async16(target, source.rows[half] + input, input < end)",
                "copy_async16(target, source.rows[half] + input, true)",
            ),
            "chunks of W lie over each other": ("        target += PIECE_BYTES;\n", ""),
            "every warp copies every slot": ("source.slot += blockDim.x / WARP;", "source.slot++;"),
            "tokens behind the last": ("WARP / 4, p.tokens - 1);", "WARP / 4, p.tokens + 100);"),
            "a lane's inputs of x are the first": ("token * p.x_stride + threadIdx.x % 4 * 8", "token * p.x_stride"),
            "rows of x are as far apart as long": ("token * p.x_stride + threadIdx", "token * p.inputs + threadIdx"),
            "second eight tokens are the first": ("smaller(i * 8 + (int)threadIdx.x", "smaller((int)threadIdx.x"),
            "reads inputs of x behind the last": ("if (input < end) v = load16", "v = load16"),
            "one chunk of x for both": (
                "      if (input < end) v = load16(tokens.rows[i] + input);",
                "      if (input < end) v = load16(tokens.rows[i] + slot * SLOT_INPUTS);",
            ),
            "one chunk of W for both": ("slot + chunk * HALVES * PIECE_BYTES", "slot"),
            "lower half is the upper": ("lower = load16(piece + PIECE_BYTES)", "lower = load16(piece)"),
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
            "a short ring longer than its room": ("SHORT_RING = 8192,", "SHORT_RING = 16384,"),
            "a long ring longer than its room": ("LONG_RING = 16384;", "LONG_RING = 32768;"),
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
                "copy_slot(target + (place + Shape::SLOT_BYTES) % Shape::RING_BYTES, source, p, tiling);",
            ),
            "the ring is one slot": ("place = (place + Shape::SLOT_BYTES) % Shape::RING_BYTES;", ""),
            "x of another slot": ("slot + Shape::SETS * warps, p.inputs);", "slot + 3 * warps, p.inputs);"),
            "slots of another warp": ("for (int first = warp; first <", "for (int first = 0; first <"),
            "a slot behind the last": ("if (first + i * warps < tiling.slots) multiply_slot", "multiply_slot"),
            "one set for two slots": ("multiply_slot(sets[i], first", "multiply_slot(sets[0], first"),
            "rings of two warps in one place": ("shared + warp * Shape::RING_BYTES +", "shared +"),
            "lanes of a ring in one place": ("RING_BYTES + threadIdx.x % WARP * 16;", "RING_BYTES;"),
            "sums of the warps over each other": ("all_sums + warp * Shape::WARP_FLOATS, sums", "all_sums, sums"),
        },
    },
)
