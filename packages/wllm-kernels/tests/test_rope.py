"""rope_kv_write against loops over tokens and heads in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wllm_kernels import InvalidArgument, rope_kv_write, rope_plan

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 16, 4
TOKENS = 5


def make_inputs(device: str, rotary_dim: int = DIM) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    qkv = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * DIM, device=device)
    positions = torch.tensor([7, 0, 3, 19, 4], device=device)
    angles = torch.arange(20.0)[:, None] * torch.rand(rotary_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1).to(device)
    kv = torch.zeros(6, 2, KV_HEADS, BLOCK, DIM, device=device)
    cells = torch.tensor([9, 2, -1, 22, 0], device=device)
    return qkv, positions, cos_sin, kv, cells


def naive_head(head: Tensor, cos_sin: Tensor, interleaved: bool, norm: Tensor | None) -> Tensor:
    head = head.double().clone()
    if norm is not None:
        head = head / (head.square().mean() + 1e-6).sqrt() * norm.double()
    half = len(cos_sin) // 2
    turned = head.clone()
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        cos, sin = cos_sin[i].double(), cos_sin[half + i].double()
        turned[a], turned[b] = head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin
    return turned


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [DIM, 6])
@pytest.mark.parametrize("norms", ["none", "both", "q only"])
def test_agreement(device: str, interleaved: bool, rotary_dim: int, norms: str) -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs(device, rotary_dim)
    q_norm = torch.rand(DIM, device=device) if norms != "none" else None
    k_norm = torch.rand(DIM, device=device) if norms == "both" else None
    q = rope_kv_write(
        qkv, positions, cos_sin, kv, cells, num_heads=HEADS, num_kv_heads=KV_HEADS,
        q_norm=q_norm, k_norm=k_norm, interleaved=interleaved,
    )  # fmt: skip
    heads = qkv.view(TOKENS, -1, DIM)
    expected = torch.zeros_like(kv, dtype=torch.float64)
    for token in range(TOKENS):
        row = cos_sin[positions[token]]
        for head in range(HEADS):
            want = naive_head(heads[token, head], row, interleaved, q_norm)
            torch.testing.assert_close(q[token, head].double(), want, atol=1e-5, rtol=1e-5)
        cell = int(cells[token])
        for head in range(KV_HEADS if cell >= 0 else 0):
            key = naive_head(heads[token, HEADS + head], row, interleaved, k_norm)
            expected[cell // BLOCK, 0, head, cell % BLOCK] = key
            expected[cell // BLOCK, 1, head, cell % BLOCK] = heads[token, HEADS + KV_HEADS + head].double()
    torch.testing.assert_close(kv.double(), expected, atol=1e-5, rtol=1e-5)


def test_plan_changes_nothing(device: str) -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs(device)
    other = kv.clone()
    plan = rope_plan(kv, positions, cos_sin, cells, dtype=qkv.dtype)
    planned = rope_kv_write(qkv, positions, cos_sin, kv, cells, num_heads=HEADS, num_kv_heads=KV_HEADS, plan=plan)
    assert torch.equal(
        planned, rope_kv_write(qkv, positions, cos_sin, other, cells, num_heads=HEADS, num_kv_heads=KV_HEADS)
    )
    assert torch.equal(kv, other)


def test_strided_cache(device: str) -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs(device)
    layers = torch.zeros(6, 3, *kv.shape[1:], device=device)
    rope_kv_write(qkv, positions, cos_sin, kv, cells, num_heads=HEADS, num_kv_heads=KV_HEADS)
    rope_kv_write(qkv, positions, cos_sin, layers[:, 1], cells, num_heads=HEADS, num_kv_heads=KV_HEADS)
    assert torch.equal(layers[:, 1], kv) and not layers[:, ::2].any()


def test_int8_cache(device: str) -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs(device)
    quantised, scale = kv.to(torch.int8), torch.zeros(kv.shape[:4], dtype=torch.float16, device=device)
    rope_kv_write(qkv, positions, cos_sin, kv, cells, num_heads=HEADS, num_kv_heads=KV_HEADS)
    rope_kv_write(qkv, positions, cos_sin, quantised, cells, num_heads=HEADS, num_kv_heads=KV_HEADS, kv_scale=scale)
    error = (quantised * scale.float().unsqueeze(-1) - kv).abs().amax(-1)
    assert bool((error <= 0.51 * scale.float()).all()) and int(quantised.abs().max()) == 127


def test_bfloat16_stays_bfloat16(device: str) -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs(device)
    q = rope_kv_write(qkv, positions, cos_sin, kv, cells, num_heads=HEADS, num_kv_heads=KV_HEADS)
    low = rope_kv_write(
        qkv.bfloat16(), positions, cos_sin, kv.bfloat16(), cells, num_heads=HEADS, num_kv_heads=KV_HEADS
    )
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), q, atol=5e-2, rtol=2e-2)


def test_kv_heads_disagree() -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs("cpu")
    with pytest.raises(InvalidArgument, match="num_kv_heads is 1 for a cache of 2 KV heads"):
        rope_kv_write(qkv, positions, cos_sin, kv, cells, num_heads=HEADS, num_kv_heads=1)


def test_odd_rotary_dim() -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs("cpu")
    with pytest.raises(InvalidArgument, match="cos_sin has 5 columns"):
        rope_kv_write(qkv, positions, cos_sin[:, :5], kv, cells, num_heads=HEADS, num_kv_heads=KV_HEADS)


def test_no_tokens(device: str) -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs(device)
    q = rope_kv_write(qkv[:0], positions[:0], cos_sin, kv, cells[:0], num_heads=HEADS, num_kv_heads=KV_HEADS)
    assert q.shape == (0, HEADS, DIM) and not kv.any()


def test_a_plan_vouches_for_its_own_tensors_only() -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs("cpu")
    plan = rope_plan(kv, positions, cos_sin, cells, dtype=qkv.dtype)
    with pytest.raises(InvalidArgument, match="positions has shape"):
        rope_kv_write(qkv, positions[:2], cos_sin, kv, cells, num_heads=HEADS, num_kv_heads=KV_HEADS, plan=plan)


def test_scales_on_another_device() -> None:
    qkv, positions, cos_sin, kv, cells = make_inputs("cpu")
    scale = torch.zeros(kv.shape[:4], dtype=torch.float16, device="meta")
    with pytest.raises(InvalidArgument, match="kv_scale is on meta"):
        rope_kv_write(
            qkv, positions, cos_sin, kv.to(torch.int8), cells, num_heads=HEADS, num_kv_heads=KV_HEADS, kv_scale=scale
        )
