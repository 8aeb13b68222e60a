"""Paged attention against attention written out per head and query in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from wllm_kernels import InvalidArgument, attention_plan, paged_attention
from wllm_kernels.reference import attention as reference_attention


@dataclass
class Case:
    q: Tensor
    kv: Tensor
    block_table: Tensor
    seq_lens: Tensor
    cu_q: Tensor
    lengths: list[int]
    counts: list[int]

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.block_table, self.seq_lens, self.cu_q


def make_case(
    device: str,
    lengths: list[int],
    counts: list[int],
    *,
    group: int = 3,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    extra_tokens: int = 0,
) -> Case:
    """Rows of these lengths in shuffled blocks; every cell that no row owns is NaN, every unused table entry -7."""
    max_blocks = max(-(-length // block_size) for length in lengths) + 1
    num_blocks = len(lengths) * max_blocks + 3
    kv = torch.full((num_blocks, 2, num_kv_heads, block_size, head_dim), torch.nan)
    ids = torch.randperm(num_blocks)[: len(lengths) * max_blocks].view(len(lengths), max_blocks).int()
    for row, length in enumerate(lengths):
        for cell in range(length):
            kv[ids[row, cell // block_size], :, :, cell % block_size] = torch.randn(2, num_kv_heads, head_dim)
        ids[row, -(-length // block_size) :] = -7
    cu_q = torch.tensor([0, *counts]).cumsum(0).int()
    q = torch.randn(int(cu_q[-1]) + extra_tokens, group * num_kv_heads, head_dim)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    return Case(q.to(device), kv.to(device), ids.to(device), seq_lens.to(device), cu_q.to(device), lengths, counts)


def naive(case: Case, scale: float, *, causal: bool = True, window: int = 0, softcap: float = 0.0) -> Tensor:
    q, kv, table = case.q.cpu().double(), case.kv.cpu().double(), case.block_table.cpu()
    block_size = kv.shape[3]
    out = torch.zeros_like(q)
    token = 0
    for row, (length, count) in enumerate(zip(case.lengths, case.counts)):
        cells = [kv[int(table[row, cell // block_size]), :, :, cell % block_size] for cell in range(length)]
        for position in range(length - count, length):
            first = max(0, position - window + 1) if window else 0
            seen = cells[first : position + 1 if causal else length]
            for head in range(q.shape[1]):
                if not seen:
                    continue
                kv_head = head * kv.shape[2] // q.shape[1]
                keys = torch.stack([cell[0, kv_head] for cell in seen])
                values = torch.stack([cell[1, kv_head] for cell in seen])
                scores = keys @ q[token, head] * scale
                if softcap:
                    scores = torch.tanh(scores / softcap) * softcap
                out[token, head] = torch.softmax(scores, 0) @ values
            token += 1
    return out


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(actual.cpu().double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("seed", range(40))
def test_random_steps(device: str, seed: int) -> None:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    counts = [choose.choice([1, 1, 1, 3, 17]) for _ in range(choose.randint(1, 7))]
    lengths = [count + choose.choice([0, 1, 15, 16, 40, 90]) for count in counts]
    window = choose.choice([0, 0, 1, 5, 16, 33])
    softcap = choose.choice([0.0, 0.0, 5.0])
    case = make_case(
        device,
        lengths,
        counts,
        group=choose.choice([1, 2, 4, 7, 8]),
        num_kv_heads=choose.choice([1, 2, 3]),
        head_dim=choose.choice([8, 64]),
        block_size=choose.choice([4, 16, 32]),
    )
    causal = window > 0 or choose.random() < 0.8
    out = paged_attention(case.q, case.kv, *case.tables, scale=0.3, causal=causal, window=window, softcap=softcap)
    assert_close(out, naive(case, 0.3, causal=causal, window=window, softcap=softcap))


@pytest.mark.parametrize("group", [1, 2, 4, 7, 8])
def test_group_sizes(device: str, group: int) -> None:
    case = make_case(device, [5, 33, 16], [1, 1, 1], group=group)
    assert_close(paged_attention(case.q, case.kv, *case.tables, scale=0.25), naive(case, 0.25))


def test_single_row(device: str) -> None:
    case = make_case(device, [37], [1])
    assert_close(paged_attention(case.q, case.kv, *case.tables, scale=0.25), naive(case, 0.25))


def test_equal_lengths(device: str) -> None:
    case = make_case(device, [21] * 5, [1] * 5)
    assert_close(paged_attention(case.q, case.kv, *case.tables, scale=0.25), naive(case, 0.25))


def test_lengths_far_apart_become_groups() -> None:
    lengths = [3, 2000, 5, 1990]
    case = make_case("cpu", lengths, [1] * 4, num_kv_heads=3, group=1, head_dim=64)
    plan = attention_plan(case.kv, *case.tables, num_heads=3)
    assert (len(plan.sizes) - 1) // 6 == 2
    assert plan.workspace_elements == 2 * 2000 * 2 * 3 * 64
    assert_close(paged_attention(case.q, case.kv, *case.tables, scale=0.25, plan=plan), naive(case, 0.25))


@pytest.mark.parametrize("length", [33, 65, 97, 130])
@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize("window", [0, 20])
def test_whole_prompts(device: str, length: int, head_dim: int, window: int) -> None:
    case = make_case(device, [length, 7], [length, 7], head_dim=head_dim)
    out = paged_attention(case.q, case.kv, *case.tables, scale=0.25, window=window)
    assert_close(out, naive(case, 0.25, window=window))


@pytest.mark.parametrize("softcap", [0.0, 4.0])
def test_queries_computed_in_slices(device: str, softcap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_attention, "_SCORE_ELEMENTS", 1000)
    case = make_case(device, [60, 50], [60, 20])
    out = paged_attention(case.q, case.kv, *case.tables, scale=0.25, softcap=softcap)
    assert_close(out, naive(case, 0.25, softcap=softcap))


def test_chunk_after_a_prefix(device: str) -> None:
    case = make_case(device, [50], [20])
    assert_close(paged_attention(case.q, case.kv, *case.tables, scale=0.25), naive(case, 0.25))


def test_bfloat16(device: str) -> None:
    case = make_case(device, [50, 20, 7, 30], [20, 20, 1, 1])
    case.q, case.kv = case.q.bfloat16(), case.kv.bfloat16()
    out = paged_attention(case.q, case.kv, *case.tables, scale=0.25)
    assert out.dtype == torch.bfloat16
    assert_close(out, naive(case, 0.25), 1e-2)


@pytest.mark.parametrize("window", [0, 9])
def test_strided_cache(device: str, window: int) -> None:
    case = make_case(device, [50, 20, 7, 30], [20, 20, 1, 1])
    strided = torch.stack((torch.full_like(case.kv, torch.nan), case.kv), 1)[:, 1]
    assert not strided.is_contiguous()
    out = paged_attention(case.q, strided, *case.tables, scale=0.25, window=window)
    assert torch.equal(out, paged_attention(case.q, case.kv, *case.tables, scale=0.25, window=window))


def test_int8_cache(device: str) -> None:
    case = make_case(device, [50, 20, 7, 30], [20, 20, 1, 1])
    scales = (torch.rand(case.kv.shape[:4], device=device) / 50 + 0.01).half()
    quantised = (
        torch.where(case.kv.isnan(), 99, (case.kv / scales.float().unsqueeze(-1)).round())
        .clamp(-127, 127)
        .to(torch.int8)
    )
    case.kv = quantised * scales.float().unsqueeze(-1)
    out = paged_attention(case.q, quantised, *case.tables, scale=0.25, kv_scale=scales)
    assert_close(out, naive(case, 0.25))


def test_plan_and_workspace_change_nothing(device: str) -> None:
    case = make_case(device, [50, 20, 7, 30, 600], [20, 20, 1, 1, 1])
    plan = attention_plan(case.kv, *case.tables, num_heads=6, window=40)
    workspace = torch.empty(plan.workspace_elements, device=device)
    plain = paged_attention(case.q, case.kv, *case.tables, scale=0.25, window=40)
    assert torch.equal(
        plain, paged_attention(case.q, case.kv, *case.tables, scale=0.25, window=40, plan=plan, workspace=workspace)
    )


def test_padding_rows_and_tokens_give_zero(device: str) -> None:
    case = make_case(device, [9, 0, 20], [1, 1, 4], extra_tokens=3)
    out = torch.full_like(case.q, torch.nan)
    paged_attention(case.q, case.kv, *case.tables, scale=0.25, out=out)
    assert not out[1].any() and not out[6:].any()
    case.q = case.q[:6]
    assert_close(out[:6], naive(case, 0.25))


def test_neighbours_change_little(device: str) -> None:
    case = make_case(device, [40, 23, 300], [1, 1, 1])
    together = paged_attention(case.q, case.kv, *case.tables, scale=0.25)
    one = torch.tensor([0, 1], dtype=torch.int32, device=device)
    alone = paged_attention(case.q[1:2], case.kv, case.block_table[1:2], case.seq_lens[1:2], one, scale=0.25)
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=1e-5)


def test_row_longer_than_its_table() -> None:
    case = make_case("cpu", [9], [1])
    with pytest.raises(InvalidArgument, match="seq_len 99 with a block table of 2 blocks of 16"):
        paged_attention(case.q, case.kv, case.block_table, case.seq_lens + 90, case.cu_q, scale=1.0)


def test_more_queries_than_tokens() -> None:
    case = make_case("cpu", [9], [4])
    with pytest.raises(InvalidArgument, match="4 queries and seq_len 3"):
        paged_attention(case.q, case.kv, case.block_table, case.seq_lens - 6, case.cu_q, scale=1.0)


def test_plan_of_another_window() -> None:
    case = make_case("cpu", [9], [1])
    plan = attention_plan(case.kv, *case.tables, num_heads=6, window=4)
    with pytest.raises(InvalidArgument, match="window=0, 6 heads with a plan for causal=True, window=4, 6 heads"):
        paged_attention(case.q, case.kv, *case.tables, scale=1.0, plan=plan)


def test_plan_of_other_heads() -> None:
    case = make_case("cpu", [9], [1])
    with pytest.raises(InvalidArgument, match="num_heads is 5 over 2 KV heads"):
        attention_plan(case.kv, *case.tables, num_heads=5)
    plan = attention_plan(case.kv, *case.tables, num_heads=4)
    with pytest.raises(InvalidArgument, match=r"6 heads with a plan for .* 4 heads"):
        paged_attention(case.q, case.kv, *case.tables, scale=1.0, plan=plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(1, 5, 16)}, "5 heads over 2 KV heads"),
        ({"q": torch.zeros(1, 6, 8)}, "q has shape"),
        ({"kv": torch.zeros(3, 2, 16, 16)}, "kv has shape"),
        ({"kv": torch.zeros(9, 2, 2, 16, 16, dtype=torch.int8)}, "kv_scale is none"),
        ({"block_table": torch.zeros(1, 2, dtype=torch.int64)}, "block_table has dtype .*int64; pass .*int32"),
        ({"seq_lens": torch.zeros(2, dtype=torch.int32)}, "block_table has shape"),
        ({"cu_q": torch.zeros(4, dtype=torch.int32)[::2]}, "cu_q has strides"),
        ({"block_table": torch.zeros(2, 3, dtype=torch.int32)[:, :1].t()}, "block_table has strides"),
        ({"kv": torch.zeros(3, 2, 0, 16, 16)}, "kv has shape"),
        ({"window": -1}, "window is -1"),
        ({"window": 2**31}, "pass 0 .off., or a size below 2"),
        ({"window": 4, "causal": False}, "window is 4 with causal=False"),
        ({"softcap": -1.0}, "softcap is -1.0"),
        ({"softcap": float("nan")}, "softcap is nan"),
        ({"softcap": float("inf")}, "softcap is inf"),
        ({"workspace": torch.zeros(4, dtype=torch.float16)}, "workspace has dtype"),
        ({"workspace": torch.zeros(8)[::2]}, "workspace has strides"),
        ({"workspace": torch.zeros(10**6)}, "plan is None; pass the plan"),
        ({"out": torch.zeros(1, 6, 8)}, "out has shape"),
        ({"out": torch.zeros(1, 6, 16, dtype=torch.float16)}, "out has dtype"),
        ({"kv": torch.zeros(3, 2, 2, 16, 16, device="meta")}, "kv is on meta"),
        ({"cu_q": torch.zeros(2, dtype=torch.int32, device="meta")}, "cu_q is on meta"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    case = make_case("cpu", [9], [1])
    arguments: dict[str, object] = {
        "q": case.q, "kv": case.kv, "block_table": case.block_table, "seq_lens": case.seq_lens, "cu_q": case.cu_q
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match=message):
        paged_attention(**(arguments | {"scale": 1.0} | change))  # type: ignore[arg-type]


def test_a_plan_vouches_for_its_own_tables_only() -> None:
    case = make_case("cpu", [9], [1])
    plan = attention_plan(case.kv, *case.tables, num_heads=6)
    with pytest.raises(InvalidArgument, match="seq_lens has dtype"):
        paged_attention(case.q, case.kv, case.block_table, case.seq_lens.long(), case.cu_q, scale=1.0, plan=plan)
