"""Faults in the sampler and in log-probabilities."""

from __future__ import annotations

from faults.fault import Table

_ONE_ORDER = "memory has one order here; only a GPU can tell"

SAMPLING = Table(
    tests=("test_emulator_sampling.py",),
    files={
        "logits.cuh": {
            "reads behind the row": ("if (!row.aligned || first + GROUP > end)", "if (!row.aligned)"),
            "unaligned pieces": ("((u64)start & 15) == 0", "true"),
            "0 behind the row": ("read_logit(row, first + i) : -infinity()", "read_logit(row, first + i) : 0.f"),
            "zeros differ": ("__float_as_uint(value + 0.f)", "__float_as_uint(value)"),
            "NaN is small": ("if (value != value) return 0xffffffffu;", ""),
            "negative floats the wrong way round": ("bits >> 31 ? ~bits :", "bits >> 31 ? bits :"),
            "the highest id among equals": ("<< 32 | ~(u32)id;", "<< 32 | (u32)id;"),
            "largest of too few lanes": (
                "distance = WARP / 2; distance > 0; distance /= 2) {\n    value = larger",
                "distance = WARP / 4; distance > 0; distance /= 2) {\n    value = larger",
            ),
            "arrives one too early": ("(u32)num_blocks - 1;", "(u32)num_blocks - 2;"),
            "list without gaps": ("list[first + __popc(votes & ((1u << lane) - 1))]", "list[first + lane]"),
        },
        "intervals.cuh": {
            "fused distance": (
                "__fdiv_rn(__fsub_rn(largest, logit), temperature)",
                "__fmul_rn(__fsub_rn(largest, logit), 1.f / temperature)",
            ),
            "no lower limit": ("smaller(larger(index, 0), INTERVALS - 1)", "smaller(index, INTERVALS - 1)"),
            "no upper limit": ("smaller(larger(index, 0), INTERVALS - 1)", "larger(index, 0)"),
            "no carry": ("+ (before + (u32)mass < before)", ""),
            "before the interval": (
                "before < target && target <= before + own",
                "before <= target && target < before + own",
            ),
            "sum of too few warps": (
                "i < warp; i++) before += scratch.warps[i]",
                "i < warp - 1; i++) before += scratch.warps[i]",
            ),
            "keys above the limit": ("if (key <= limit && key >> shift", "if (key >> shift"),
            "keys of other intervals": ("key <= limit && key >> shift == low >> shift", "key <= limit"),
            "target stays": ("target -= reached.before;", ""),
        },
        "noise.cuh": {
            "another constant": ("0x85ebca6bu", "0x85ebca6du"),
            "same noise at all positions": ("((u64)position + 1) * GAMMA", "GAMMA"),
            "uniform may be 1": ("fminf(uniform, 1.f - 0x1p-24f)", "uniform"),
            "ignores the limit": ("if (distance > limit) return;", ""),
            "bound is too low": (
                "ROUNDING - LN_2 * log2_fast(uniform)",
                "0.5f * (ROUNDING - LN_2 * log2_fast(uniform))",
            ),
            "keeps the first": ("if (entry > best) {", "if (best == 0) {"),
        },
        "sampling.cuh": {
            "hides infinity": (
                "r.is_failed = !(fabsf(r.largest) < infinity());",
                "r.is_failed = r.largest != r.largest;",
            ),
            "greedy is random": ("r.temperature >= GREEDY_BELOW", "r.temperature > 0.f"),
            "no min_p": ("min_p > 0.f ? __float_as_uint(fmaxf(-logf(min_p), 0.f)) : LAST_FINITE", "LAST_FINITE"),
            "row of the launch": ("r.row = p.first_row + blockIdx.y;", "r.row = blockIdx.y;"),
            "slice behind the vocabulary": (
                "r.end = smaller(r.begin + p.slice_size, p.vocab_size);",
                "r.end = r.begin + p.slice_size;",
            ),
        },
        "sampling_prepare.cu": {
            "state is not cleared": ("if (params.temperature) clear_state(params.states[blockIdx.y]);", ""),
            "bias of other rows": (
                "entry <= memory.last_entry && p.bias_rows[entry] == row",
                "entry <= memory.last_entry",
            ),
            "bias behind the list": (
                "entry <= memory.last_entry && p.bias_rows[entry] == row",
                "p.bias_rows[entry] == row",
            ),
            "bias of other tiles": ("if (0 <= within && within < TILE) id", "id"),
            "last bias only": (
                "if (memory.entry_ids[i] == id) sum += memory.entry_values[i];",
                "if (memory.entry_ids[i] == id) sum = memory.tile[id] + memory.entry_values[i];",
            ),
            "bias twice": ("if (!is_first) continue;", ""),
            "repetition of positive logits": (
                "logit > 0.f ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition)",
                "__fdiv_rn(logit, repetition)",
            ),
            "repetition without the prompt": ("if (count > 0 || p.prompt_seen[place])", "if (count > 0)"),
            "presence of all": (
                "count > 0 ? __fsub_rn(logit, p.presence[entry]) : logit",
                "__fsub_rn(logit, p.presence[entry])",
            ),
            "tokens behind the slice": ("if (id + i >= end) continue;", ""),
            "no mask": ("if (!(allowed >> i & 1)) values[i] = -infinity();", ""),
            "mask of another word": ("id / 32] >> id % 32", "id / 32] >> 0"),
            "stops early": ("if (id >= end) return 0;", "if (id >= end - 1) return 0;"),
        },
        "sampling.cu": {
            "mass of 0": ("(u64)larger(ceil((double)total * top_p), 1.0)", "(u64)ceil((double)total * top_p)"),
            "draws above min_p": ("    if (key > r.limit) return;\n", ""),
            "top_k of fewer": (
                "last = first_reaching(tally.counts, r.top_k, memory.scratch).interval;",
                "last = first_reaching(tally.counts, r.top_k, memory.scratch).interval - 1;",
            ),
            "mass before top_k": ("mass += key <= limit ? mass_of(key) : 0;", "mass += mass_of(key);"),
            "no top_p": ("if (r.top_p < 1.f) {\n    u64 mass", "if (false) {\n    u64 mass"),
            "failed rows have a token": ("if (r.is_failed) {", "if (false) {"),
            "every failure is the model's": ("broken ? -1 : -2", "-1"),
            "no failure is the model's": ("broken ? -1 : -2", "-2"),
            "logits behind the last are broken": ("inside && !(fabsf(logit)", "!(fabsf(logit)"),
            "gathers too much": ("interval_of(key) <= last, (u64)key", "true, (u64)key"),
        },
    },
    survivors={
        "logits.cuh: arrives_last: __threadfence(); #1": _ONE_ORDER,
        "logits.cuh: arrives_last: __threadfence(); #2": _ONE_ORDER,
        "intervals.cuh: keys above the limit": "they sort behind the target, which those up to the limit reach",
        "intervals.cuh: fused distance": "the last bit of a distance, which decides between near ties only",
        "noise.cuh: uniform may be 1": "one token in 2**31, whose noise is then -infinity: it does not win as before",
    },
)

LOGPROBS = Table(
    tests=("test_emulator_logprobs.py",),
    files={
        "logprobs.cu": {
            "rank counts equals": ("values[half][i] > chosen", "values[half][i] >= chosen"),
            "no rank 1": ("summary.num_larger + 1;", "summary.num_larger;"),
            "infinite reference": ("fabsf(largest) < infinity() ? largest : 0.f", "largest"),
            "no rescale of slices": ("* expf(finite_or_zero(slices[i].largest) - reference)", ""),
            "reads no such token": (
                "exists ? read_logit(row, (int)token) : __uint_as_float(0x7fffffffu);\n  float largest",
                "read_logit(row, (int)token);\n  float largest",
            ),
            "higher ids first": (
                "<< ID_BITS | (u32)id;\n}\nDEVICE float logit_of",
                "<< ID_BITS | (u32)(0x7fffffff - id);\n}\nDEVICE float logit_of",
            ),
            "state is not cleared": ("state.counts[i] = 0;", ""),
            "tokens behind the row": ("if (inside) tally.add(interval_below", "tally.add(interval_below"),
            "interval before": (
                "state.last_interval = reached.interval;",
                "state.last_interval = reached.interval - 1;",
            ),
            "more than wanted": ("if (num_better >= wanted) continue;", ""),
            "begins again": ("first = last + 1;", ""),
            "same place": ("p.top_n + written;", "p.top_n;"),
            "gathers behind the row": (
                "const bool wanted = inside && interval_below",
                "const bool wanted = interval_below",
            ),
            "not a number is far": (
                "interval_of(__float_as_uint(distance)) : 0;",
                "interval_of(__float_as_uint(distance)) : INTERVALS - 1;",
            ),
        }
    },
    survivors={
        "logprobs.cu: tokens behind the row": "more than a block orders at once: it orders the whole row, correctly",
    },
)
