"""Drawing tokens from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.ops.checks import expect_dtype, expect_shape


@dataclass(frozen=True, slots=True)
class Draw:
    """Random rows: one entry a row of the logits. A filter that no row uses is None."""

    temperature: Tensor  # float32 [rows]; below 1e-5 the row is greedy
    seeds: Tensor  # int64 [rows]
    positions: Tensor  # int64 [rows], the position that the drawn token will have
    top_k: Tensor | None = None  # int64 [rows]; 0, or the vocabulary and more: off
    top_p: Tensor | None = None  # float32 [rows]; 1: off
    min_p: Tensor | None = None  # float32 [rows]; 0: off


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Values added to single logits; -inf bans the token. Several values for one logit add up."""

    rows: Tensor  # int64 [entries], rows of the logits
    token_ids: Tensor  # int64 [entries]
    values: Tensor  # float32 [entries]


@dataclass(frozen=True, slots=True)
class Penalties:
    """Penalised rows. The tables hold one row for each slot that asked for penalties, in any order."""

    rows: Tensor  # int64 [penalised], rows of the logits, all different
    slots: Tensor  # int64 [penalised], rows of the two tables
    repetition: Tensor  # float32 [penalised], over prompt and output; 1: off
    presence: Tensor  # float32 [penalised], over the output
    frequency: Tensor  # float32 [penalised], over the output
    output_counts: Tensor  # int32 [slots, vocab]
    prompt_seen: Tensor  # bool [slots, vocab]


def sample(
    logits: Tensor,
    *,
    draw: Draw | None = None,
    bias: LogitBias | None = None,
    bitmask: Tensor | None = None,
    penalties: Penalties | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One token for each row of `logits` [rows, vocab], which stay as they are: int64 [rows]. Raises `InvalidArgument`.

    In this order, in float32: `bias`; `bitmask` int32 [rows, ceil(vocab / 32)], where bit i % 32 of word i // 32 allows
    token i; repetition penalty (a positive logit is divided by it, another multiplied), then frequency * count, then
    presence. Without `draw`, or with a temperature below 1e-5, the largest logit wins, the lowest id among equals.
    Else scaled = (logit - largest) / temperature is filtered by min-p, top-k and top-p, in that order, each a threshold
    on the value: equal values stand or fall together. min-p keeps what has at least min_p times the largest
    probability; top-k what is not below the k-th value; top-p what has less than top_p of the remaining probability in
    larger values; the largest always stays. The token is the argmax of scaled + Gumbel noise, a pure function of (seed,
    position, token id). A row whose largest logit is NaN or infinite, or with every token banned, gives -1.
    """
    expect_shape("logits", logits, None, None)
    rows, vocab_size = logits.shape
    if draw is not None:
        _check_draw(draw, rows)
    if bias is not None:
        _check_bias(bias)
    if bitmask is not None:
        expect_shape("bitmask", bitmask, rows, -(-vocab_size // 32))
        expect_dtype("bitmask", bitmask, torch.int32)
    if penalties is not None:
        _check_penalties(penalties, vocab_size)
    if out is None:
        out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    else:
        expect_shape("out", out, rows)
        expect_dtype("out", out, torch.int64)
    dispatch.sample(
        logits,
        *((None,) * 6 if draw is None else
          (draw.temperature, draw.top_k, draw.top_p, draw.min_p, draw.seeds, draw.positions)),
        *((None,) * 3 if bias is None else (bias.rows, bias.token_ids, bias.values)),
        bitmask,
        *((None,) * 7 if penalties is None else
          (penalties.rows, penalties.slots, penalties.repetition, penalties.presence, penalties.frequency,
           penalties.output_counts, penalties.prompt_seen)),
        out,
    )  # fmt: skip
    return out


def _check_draw(draw: Draw, rows: int) -> None:
    expect_shape("draw.temperature", draw.temperature, rows)
    for name, tensor in (("seeds", draw.seeds), ("positions", draw.positions), ("top_k", draw.top_k)):
        if tensor is not None:
            expect_shape(f"draw.{name}", tensor, rows)
            expect_dtype(f"draw.{name}", tensor, torch.int64)
    for name, tensor in (("temperature", draw.temperature), ("top_p", draw.top_p), ("min_p", draw.min_p)):
        if tensor is not None:
            expect_shape(f"draw.{name}", tensor, rows)
            expect_dtype(f"draw.{name}", tensor, torch.float32)


def _check_bias(bias: LogitBias) -> None:
    entries = bias.rows.shape[0]
    for name, tensor in (("rows", bias.rows), ("token_ids", bias.token_ids)):
        expect_shape(f"bias.{name}", tensor, entries)
        expect_dtype(f"bias.{name}", tensor, torch.int64)
    expect_shape("bias.values", bias.values, entries)
    expect_dtype("bias.values", bias.values, torch.float32)


def _check_penalties(penalties: Penalties, vocab_size: int) -> None:
    count = penalties.rows.shape[0]
    for name, tensor in (("rows", penalties.rows), ("slots", penalties.slots)):
        expect_shape(f"penalties.{name}", tensor, count)
        expect_dtype(f"penalties.{name}", tensor, torch.int64)
    for name, tensor in (
        ("repetition", penalties.repetition),
        ("presence", penalties.presence),
        ("frequency", penalties.frequency),
    ):
        expect_shape(f"penalties.{name}", tensor, count)
        expect_dtype(f"penalties.{name}", tensor, torch.float32)
    slots = penalties.output_counts.shape[0]
    expect_shape("penalties.output_counts", penalties.output_counts, slots, vocab_size)
    expect_dtype("penalties.output_counts", penalties.output_counts, torch.int32)
    expect_shape("penalties.prompt_seen", penalties.prompt_seen, slots, vocab_size)
    expect_dtype("penalties.prompt_seen", penalties.prompt_seen, torch.bool)
