"""Decode attention in the emulator against the reference, which is float32 throughout."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import reference
from wllm_kernels.device import attention_decode

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


@dataclass
class Step:
    """Rows in shuffled blocks. What no row owns is NaN, or -7 in the block table."""

    q: Tensor
    kv: Tensor
    kv_scale: Tensor | None
    block_table: Tensor
    seq_lens: Tensor
    cu_q: Tensor


def make_step(
    emulator: Emulator,
    lengths: list[int],
    counts: list[int],
    *,
    dtype: torch.dtype = torch.float16,
    cached: torch.dtype | None = None,
    group: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    extra_tokens: int = 0,
) -> Step:
    blocks = [-(-length // block_size) for length in lengths]
    max_blocks, num_blocks = max(blocks) + 1, sum(blocks) + 2
    kv = torch.full((num_blocks, 2, num_kv_heads, block_size, head_dim), torch.nan)
    kv_scale = torch.full(kv.shape[:4], torch.nan) if cached == torch.int8 else None
    table = torch.full((len(lengths), max_blocks), -7, dtype=torch.int32)
    ids = iter(torch.randperm(num_blocks).tolist())
    for row, length in enumerate(lengths):
        for number in range(blocks[row]):
            table[row, number] = block = next(ids)
            cells = min(block_size, length - number * block_size)
            kv[block, :, :, :cells] = torch.randn(2, num_kv_heads, cells, head_dim)
            if kv_scale is not None:
                kv_scale[block, :, :, :cells] = torch.rand(2, num_kv_heads, cells) / 50 + 1e-3
    if kv_scale is not None:
        kv = torch.where(kv.isnan(), 99, (kv / kv_scale.unsqueeze(-1)).round().clamp(-128, 127))
        kv_scale = emulator.guard(kv_scale.half())
    cu_q = torch.tensor([0, *counts]).cumsum(0).int()
    q = torch.randn(int(cu_q[-1]) + extra_tokens, group * num_kv_heads, head_dim)
    guarded = [q.to(dtype), kv.to(cached or dtype), table, torch.tensor(lengths, dtype=torch.int32), cu_q]
    q, kv, table, seq_lens, cu_q = (emulator.guard(tensor) for tensor in guarded)
    return Step(q, kv, kv_scale, table, seq_lens, cu_q)


def check(
    emulator: Emulator, step: Step, *, scale: float = 0.125, causal: bool = True, window: int = 0, softcap: float = 0.0
) -> None:
    """One plan, two layers: the second finds the counters as the first did."""
    tables = step.block_table, step.seq_lens, step.cu_q
    rows = len(step.seq_lens)
    plan = emulator.guard(torch.full((attention_decode.plan_elements(step.kv, rows),), -1, dtype=torch.int32))
    workspace = emulator.guard(torch.full((attention_decode.workspace_bytes(step.kv) // 4,), torch.nan))
    attention_decode.launch_plan(step.kv, *tables, step.q.shape[1], causal, window, plan)
    expected = torch.empty(step.q.shape)
    reference.paged_attention(
        step.q, step.kv, *tables, scale, causal, window, softcap, step.kv_scale, (), (), None, expected
    )
    for _ in range(2):
        out = emulator.guard(torch.full_like(step.q, torch.nan))
        attention_decode.launch(
            step.q, step.kv, *tables, scale, causal, window, softcap, step.kv_scale, plan, workspace, out
        )
        tolerance = TOLERANCE[step.q.dtype]
        torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ragged_rows(emulator: Emulator, dtype: torch.dtype) -> None:
    check(emulator, make_step(emulator, [5, 130, 16, 1], [1, 1, 1, 1], dtype=dtype))
