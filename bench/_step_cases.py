"""Cases of a step at small sizes: each op inside a graph at batch 1, and the host time of launching it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from _attention_cases import BLOCK_SIZE, LLAMA_8B, QWEN_05B, Heads, PagedRows, Row
from _gpu import Call, Gpu
from _layer_cases import EPS, RopeWrite
from torch import Tensor

from wllm_kernels import (
    act_mul,
    advance_step,
    attention_plan,
    paged_attention,
    prepare_step,
    rms_norm,
    sample,
    step_inputs,
)

CONTEXT = 1024
VOCAB = 151_936
SLOTS = 64


def latency(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """Microseconds of each op of a decode step at batch 1, one behind the other inside a graph."""
    for name, (call, baseline) in _small_calls().items():
        ours = gpu.time(call)
        row: Row = {"op, batch 1": name, "us": ours.median * 1e6, "low us": ours.low * 1e6}
        if baseline is not None:
            row["torch us"] = gpu.time(baseline).median * 1e6
        yield row


def launch(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """Microseconds of host time that one eager call of a public function takes."""
    for name, (call, baseline) in _small_calls().items():
        row: Row = {"call, batch 1": name, "host us": gpu.host_seconds(call) * 1e6}
        if baseline is not None:
            row["torch host us"] = gpu.host_seconds(baseline) * 1e6
        yield row


def _small_calls() -> dict[str, tuple[Call, Call | None]]:
    one = torch.zeros(1, device="cuda")
    calls: dict[str, tuple[Call, Call | None]] = {"torch, one element (floor)": (lambda _: one.add_(1), None)}
    for hidden, intermediate, heads in ((896, 4864, QWEN_05B), (4096, 14336, LLAMA_8B)):
        calls |= _layer_calls(hidden, intermediate, heads)
    logits = torch.randn(1, VOCAB, device="cuda")
    calls[f"sample greedy, {VOCAB:,}"] = (lambda _: sample(logits), lambda _: logits.argmax(-1))
    calls |= _step_calls()
    return calls


def _layer_calls(hidden: int, intermediate: int, heads: Heads) -> dict[str, tuple[Call, Call | None]]:
    x, residual, weight = (torch.randn(1, hidden, device="cuda").bfloat16() for _ in range(3))
    weight = weight[0].contiguous()
    gate_up = torch.randn(1, 2 * intermediate, device="cuda").bfloat16()
    rope = RopeWrite(heads, 1, 1)
    attend, plan = _decode_calls(heads)

    def torch_activation(_: int) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    return {
        f"rms_norm, {hidden}": (
            lambda _: rms_norm(x, weight, EPS), lambda _: F.rms_norm(x, (hidden,), weight, EPS)
        ),
        f"rms_norm + residual, {hidden}": (
            lambda _: rms_norm(x, weight, EPS, residual),
            lambda _: F.rms_norm(residual.add_(x), (hidden,), weight, EPS),
        ),
        f"act_mul, {intermediate}": (lambda _: act_mul(gate_up, "silu"), torch_activation),
        f"rope_kv_write, {heads}": (rope, None),
        f"paged_attention, {heads}, {CONTEXT:,} tokens": (attend, None),
        f"attention_plan, {heads}": (plan, None),
    }  # fmt: skip


def _decode_calls(heads: Heads) -> tuple[Call, Call]:
    rows = PagedRows(heads, [CONTEXT], 1, torch.bfloat16)
    q = torch.randn(1, heads.queries, heads.dim, dtype=torch.bfloat16, device="cuda")
    cu_q = torch.arange(2, dtype=torch.int32, device="cuda")
    tables = rows.block_table, rows.seq_lens, cu_q
    plan = attention_plan(rows.kv[0], *tables, num_heads=heads.queries, max_queries=1)
    workspace = torch.empty(plan.workspace_elements, dtype=torch.bfloat16, device="cuda")
    out, scale = torch.empty_like(q), heads.dim**-0.5
    return (
        lambda _: paged_attention(q, rows.kv[0], *tables, scale=scale, plan=plan, workspace=workspace, out=out),
        lambda _: attention_plan(rows.kv[0], *tables, num_heads=heads.queries, max_queries=1, out=plan),
    )


def _step_calls() -> dict[str, tuple[Call, Call | None]]:
    blocks = -(-CONTEXT // BLOCK_SIZE) + 1
    token_table = torch.zeros(SLOTS, CONTEXT + 2, dtype=torch.int32, device="cuda")
    block_tables = torch.zeros(SLOTS, blocks, dtype=torch.int32, device="cuda")
    lengths = torch.zeros(SLOTS, dtype=torch.int32, device="cuda")
    rows = torch.tensor([[3, CONTEXT, 1, 1]], dtype=torch.int32, device="cuda")
    cu_q = torch.tensor([0, 1], dtype=torch.int32, device="cuda")
    tokens, out = torch.tensor([5], device="cuda"), step_inputs(1, 1, blocks, "cuda")
    return {
        "prepare_step": (
            lambda _: prepare_step(
                rows, cu_q, token_table, block_tables, block_size=BLOCK_SIZE, num_tokens=1, num_blocks=blocks, out=out
            ),
            None,
        ),
        "advance_step": (lambda _: advance_step(rows, tokens, token_table, lengths), None),
    }
