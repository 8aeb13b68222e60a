"""Drawing tokens from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.device.sampling import workspace_bytes
from wllm_kernels.ops.checks import expect_device, expect_dtype, expect_logits, expect_shape, expect_workspace


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


def sample_workspace_bytes(rows: int, vocab_size: int, *, adjusted: bool = True) -> int:
    """Bytes of a workspace that serves calls of `sample` with up to so many rows.

    `adjusted` says whether any of them has a bias, a bitmask or penalties.
    """
    return workspace_bytes(rows, vocab_size, adjusted)


def sample(
    logits: Tensor,
    *,
    draw: Draw | None = None,
    bias: LogitBias | None = None,
    bitmask: Tensor | None = None,
    penalties: Penalties | None = None,
    workspace: Tensor | None = None,
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
    position, token id). A row whose largest value is NaN or infinite has no token: it gives -1 if its logits are not
    all finite, else -2, for then it is what was asked for that bans every token.
    `workspace`, uint8 of `sample_workspace_bytes`, and `out` save allocations.
    """
    rows, vocab_size = expect_logits(logits)
    if draw is not None:
        _check_draw(draw, logits)
    if bias is not None:
        _check_bias(bias, logits)
    if bitmask is not None:
        expect_shape("bitmask", bitmask, rows, -(-vocab_size // 32))
        expect_dtype("bitmask", bitmask, torch.int32)
        expect_device("bitmask", bitmask, logits)
    if penalties is not None:
        _check_penalties(penalties, logits)
    if workspace is not None:
        adjusted = not (bias is None and bitmask is None and penalties is None)
        expect_workspace(workspace, workspace_bytes(rows, vocab_size, adjusted), logits)
    if out is None:
        out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    else:
        expect_shape("out", out, rows)
        expect_dtype("out", out, torch.int64)
        expect_device("out", out, logits)
    dispatch.sample(
        logits,
        *((None,) * 6 if draw is None else
          (draw.temperature, draw.top_k, draw.top_p, draw.min_p, draw.seeds, draw.positions)),
        *((None,) * 3 if bias is None else (bias.rows, bias.token_ids, bias.values)),
        bitmask,
        *((None,) * 7 if penalties is None else
          (penalties.rows, penalties.slots, penalties.repetition, penalties.presence, penalties.frequency,
           penalties.output_counts, penalties.prompt_seen)),
        workspace,
        out,
    )  # fmt: skip
    return out


def _expect(name: str, tensor: Tensor, dtype: torch.dtype, logits: Tensor, *shape: int) -> None:
    expect_shape(name, tensor, *shape)
    expect_dtype(name, tensor, dtype)
    expect_device(name, tensor, logits)


def _check_draw(draw: Draw, logits: Tensor) -> None:
    rows = logits.shape[0]
    _expect("draw.temperature", draw.temperature, torch.float32, logits, rows)
    for name, tensor in (("seeds", draw.seeds), ("positions", draw.positions), ("top_k", draw.top_k)):
        if tensor is not None:
            _expect(f"draw.{name}", tensor, torch.int64, logits, rows)
    for name, tensor in (("top_p", draw.top_p), ("min_p", draw.min_p)):
        if tensor is not None:
            _expect(f"draw.{name}", tensor, torch.float32, logits, rows)


def _check_bias(bias: LogitBias, logits: Tensor) -> None:
    entries = bias.rows.shape[0]
    _expect("bias.rows", bias.rows, torch.int64, logits, entries)
    _expect("bias.token_ids", bias.token_ids, torch.int64, logits, entries)
    _expect("bias.values", bias.values, torch.float32, logits, entries)


def _check_penalties(penalties: Penalties, logits: Tensor) -> None:
    count, slots, vocab_size = penalties.rows.shape[0], penalties.output_counts.shape[0], logits.shape[1]
    _expect("penalties.rows", penalties.rows, torch.int64, logits, count)
    _expect("penalties.slots", penalties.slots, torch.int64, logits, count)
    _expect("penalties.repetition", penalties.repetition, torch.float32, logits, count)
    _expect("penalties.presence", penalties.presence, torch.float32, logits, count)
    _expect("penalties.frequency", penalties.frequency, torch.float32, logits, count)
    _expect("penalties.output_counts", penalties.output_counts, torch.int32, logits, slots, vocab_size)
    _expect("penalties.prompt_seen", penalties.prompt_seen, torch.bool, logits, slots, vocab_size)
