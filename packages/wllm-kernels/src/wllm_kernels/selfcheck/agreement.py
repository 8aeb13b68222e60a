"""Each op of a layer on a device against its reference on the CPU, on the same rounded inputs.

A check builds its inputs, runs the public function on `device` and the plain-torch reference on CPU copies, and asserts
that they agree as far as the dtypes allow. Memory that no row owns holds NaN (or what stands for it in the cache's
dtype), and so do results before they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wllm_kernels import (
    Activation,
    AttentionPlan,
    act_mul,
    attention_plan,
    linear,
    linear_act,
    pack_linear,
    paged_attention,
    reference,
    rms_norm,
    rope_kv_write,
)

# Of the largest value: half a unit in the last place of the result, and as much for the probabilities that multiply it.
ATTENTION_TOLERANCE = {torch.float32: 1e-5, torch.float16: 6e-4, torch.bfloat16: 4e-3}
# With an 8-bit cache: prefill multiplies rounded products of elements and scales.
QUANTISED_TOLERANCE = 1e-2
# Two units in the last place, relative.
TWO_ULPS = {torch.float32: 1e-5, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Shape:
    """The heads of a model and the layout of its cache; `cache` None: keys and values have the dtype of the queries."""

    heads: int = 8
    kv_heads: int = 2
    dim: int = 64
    block: int = 16
    dtype: torch.dtype = torch.bfloat16
    cache: torch.dtype | None = None


@dataclass(frozen=True)
class Mask:
    """What a query may see, and how scores are capped."""

    causal: bool = True
    window: int = 0
    softcap: float = 0.0


@dataclass
class Step:
    """The inputs of one attention call, on a device."""

    shape: Shape
    q: Tensor
    kv: Tensor
    kv_scale: Tensor | None
    block_table: Tensor
    seq_lens: Tensor
    cu_q: Tensor
    max_queries: int = field(default=1)

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Blocks, lengths and query counts, as the op takes them."""
        return self.block_table, self.seq_lens, self.cu_q

    def to(self, device: str) -> Step:
        """The same step in the memory of a device."""
        moved = {
            name: value.to(device)
            for name in ("q", "kv", "kv_scale", "block_table", "seq_lens", "cu_q")
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **moved)


def make_step(shape: Shape, lengths: Sequence[int], counts: Sequence[int], *, spare: int = 0, seed: int = 0) -> Step:
    """On the CPU: rows of these lengths and query counts in shuffled blocks, and `spare` tokens that no row owns."""
    random = torch.Generator().manual_seed(seed)
    blocks = [-(-length // shape.block) for length in lengths]
    width = max(blocks) + 1
    order = torch.randperm(sum(blocks) + 3, generator=random).int()
    table = torch.full((len(lengths), width), 2**30, dtype=torch.int32)  # an id that no cache has
    kv = torch.full((len(order), 2, shape.kv_heads, shape.block, shape.dim), torch.nan)
    first = 0
    for row, (length, count) in enumerate(zip(lengths, blocks)):
        ids = order[first : first + count]
        table[row, :count], first = ids, first + count
        cells = torch.full((count * shape.block, 2, shape.kv_heads, shape.dim), torch.nan)
        cells[:length] = torch.randn(length, 2, shape.kv_heads, shape.dim, generator=random)
        kv[ids.long()] = cells.view(count, shape.block, 2, shape.kv_heads, shape.dim).permute(0, 2, 3, 1, 4)
    cu_q = torch.tensor([0, *counts]).cumsum(0).int()
    q = torch.randn(int(cu_q[-1]) + spare, shape.heads, shape.dim, generator=random).to(shape.dtype)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    stored, scale = _stored(kv, shape.cache or shape.dtype)
    return Step(shape, q, stored, scale, table, seq_lens, cu_q, max(counts, default=1))


def _stored(kv: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    if dtype != torch.int8:
        return kv.to(dtype), None
    scale = (kv.abs().amax(-1) / 127).half()  # NaN where no token is
    cells = torch.where(kv.isnan(), 99.0, (kv / scale.float().unsqueeze(-1)).round())
    return cells.clamp(-127, 127).to(torch.int8), scale


def attend(step: Step, mask: Mask, *, plan: AttentionPlan | None = None, workspace: Tensor | None = None) -> Tensor:
    """The op, into a result that held NaN."""
    out = torch.full_like(step.q, torch.nan)
    return paged_attention(
        step.q, step.kv, *step.tables, scale=step.shape.dim**-0.5, causal=mask.causal, window=mask.window,
        softcap=mask.softcap, kv_scale=step.kv_scale, plan=plan, workspace=workspace, out=out,
    )  # fmt: skip


def plan_of(step: Step, mask: Mask, *, out: AttentionPlan | None = None) -> AttentionPlan:
    """The plan of the step."""
    return attention_plan(
        step.kv, *step.tables, num_heads=step.shape.heads, causal=mask.causal, window=mask.window,
        max_queries=step.max_queries, out=out,
    )  # fmt: skip


def expected_attention(step: Step, mask: Mask) -> Tensor:
    """The reference in float32 on the CPU."""
    cpu = step.to("cpu")
    kv, scale = cpu.kv, cpu.kv_scale
    if kv.dtype != torch.int8:
        kv = kv.float()
    q = cpu.q.float()
    out = torch.full_like(q, torch.nan)
    options = (step.shape.dim**-0.5, mask.causal, mask.window, mask.softcap)
    reference.paged_attention(q, kv, *cpu.tables, *options, scale, (), (), None, out)
    return out


def assert_attention(step: Step, mask: Mask, out: Tensor) -> None:
    """`out` is the attention of `step`."""
    expected = expected_attention(step, mask)
    actual = out.float().cpu()
    assert bool(actual.isfinite().all()), "a result is not finite: memory that no row owns was read"
    largest = max(float(expected.abs().max()), 1.0)
    difference = float((actual - expected).abs().max()) / largest
    tolerance = ATTENTION_TOLERANCE[step.shape.dtype]
    if step.kv.dtype.itemsize == 1:
        tolerance = QUANTISED_TOLERANCE
    assert difference <= tolerance, f"{difference:.1e} of the largest value off, allowed {tolerance:.1e}"


def check_attention(
    device: str, shape: Shape, mask: Mask, lengths: Sequence[int], counts: Sequence[int], *, spare: int = 0
) -> None:
    """One step, without a plan and with one."""
    step = make_step(shape, lengths, counts, spare=spare).to(device)
    alone = attend(step, mask)
    assert_attention(step, mask, alone)
    plan = plan_of(step, mask)
    workspace = torch.empty(plan.workspace_elements, dtype=step.kv.dtype, device=device)
    assert_attention(step, mask, attend(step, mask, plan=plan, workspace=workspace))


def assert_near(actual: Tensor, expected: Tensor, floor: float = 1e-5) -> None:
    """Within two units in the last place of the dtype, or `floor`."""
    assert actual.dtype == expected.dtype
    tolerance = TWO_ULPS[actual.dtype]
    torch.testing.assert_close(actual.cpu().float(), expected.float(), rtol=tolerance, atol=floor)


def check_norm(device: str, dtype: torch.dtype, rows: int, size: int, *, residual: bool, offset: float) -> None:
    """With and without a residual, which becomes the sum."""
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(size).to(dtype)
    total = torch.randn(rows, size).to(dtype) if residual else None
    moved = None if total is None else total.to(device, copy=True)
    if moved is None:
        out = rms_norm(x.to(device), weight.to(device), 1e-5, weight_offset=offset)
    else:
        out, _ = rms_norm(x.to(device), weight.to(device), 1e-5, moved, weight_offset=offset)
    expected = torch.empty_like(x)
    reference.rms_norm(x, weight, 1e-5, total, offset, expected)
    assert_near(out, expected)
    if moved is not None and total is not None:
        assert torch.equal(moved.cpu(), total)


def check_activation(device: str, dtype: torch.dtype, rows: int, size: int, kind: Activation) -> None:
    """Gated by each of the functions."""
    x = (torch.randn(rows, 2 * size) * 3).to(dtype)
    expected = torch.empty(rows, size, dtype=dtype)
    reference.act_mul(x, kind, expected)
    floor = 2 * TWO_ULPS[dtype] * 0.1
    if kind == "gelu":
        # 1 + erf(gate) cancels below zero; each side's erf is off by one or two units in the last place below 1.
        gate, up = x.float().chunk(2, -1)
        floor = max(floor, 3 * 2.0**-24 * float((gate * up / 2).abs().max()))
    assert_near(act_mul(x.to(device), kind), expected, floor=floor)


def check_linear(device: str, dtype: torch.dtype, tokens: int, outputs: int, inputs: int, kind: Activation) -> None:
    """Sums in float32, their rounding, and the fused activation, which changes no bit; `outputs` is even."""
    x, weight, bias = (torch.randn(size).to(dtype) for size in ((tokens, inputs), (outputs, inputs), (outputs,)))
    packed, moved = pack_linear(weight.to(device), bias.to(device)), x.to(device)
    sums, rounded = linear(moved, packed, out_dtype=torch.float32), linear(moved, packed)
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(sums.cpu().double(), expected, rtol=1e-5, atol=1e-6 * inputs)
    assert torch.equal(rounded, sums.to(dtype))
    assert torch.equal(linear_act(moved, packed, kind), act_mul(rounded, kind))


@dataclass(frozen=True)
class Rotation:
    """How `rope_kv_write` is called."""

    rotary_dim: int
    interleaved: bool = False
    head_norms: bool = False


def check_rope(device: str, shape: Shape, rotation: Rotation, tokens: int) -> None:
    """Some tokens have no cell; the rest of the cache stays as it was."""
    blocks = -(-tokens // shape.block) + 2
    qkv = torch.randn(tokens, (shape.heads + 2 * shape.kv_heads) * shape.dim).to(shape.dtype)
    positions = torch.randint(0, 500, (tokens,))
    angles = torch.arange(500.0)[:, None] * torch.rand(rotation.rotary_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    cells = torch.randperm(blocks * shape.block)[:tokens]
    cells[::5] = -1
    q_norm, k_norm = (torch.rand(shape.dim).to(shape.dtype) if rotation.head_norms else None for _ in range(2))
    dtype = shape.cache or shape.dtype
    untouched = torch.full((blocks, 2, shape.kv_heads, shape.block, shape.dim), 77.0).to(dtype)
    scales = torch.full(untouched.shape[:4], 7.0).half() if dtype == torch.int8 else None
    kv, kv_scale = untouched.to(device, copy=True), None if scales is None else scales.to(device, copy=True)
    q = rope_kv_write(
        qkv.to(device), positions.to(device), cos_sin.to(device), kv, cells.to(device), num_heads=shape.heads,
        num_kv_heads=shape.kv_heads, q_norm=_on(q_norm, device), k_norm=_on(k_norm, device),
        interleaved=rotation.interleaved, kv_scale=kv_scale,
    )  # fmt: skip
    expected = torch.full((tokens, shape.heads, shape.dim), torch.nan, dtype=shape.dtype)
    reference.rope_kv_write(
        qkv, positions, cos_sin, untouched, cells, shape.heads, shape.kv_heads, q_norm, k_norm, 1e-6,
        rotation.interleaved, scales, (), expected,
    )  # fmt: skip
    step = TWO_ULPS[shape.dtype] * float(expected.abs().max())
    torch.testing.assert_close(q.cpu().float(), expected.float(), rtol=0.0, atol=step)
    if dtype == shape.dtype:
        assert torch.equal(kv[:, 1].cpu(), untouched[:, 1]), "values are stored as they are"
    quantum = 0.0
    if scales is not None and kv_scale is not None:
        torch.testing.assert_close(kv_scale.cpu().float(), scales.float(), rtol=TWO_ULPS[shape.dtype], atol=0.0)
        quantum = 1.0  # a value between two steps may go either way
    relative = 2.0**-3 if dtype == FP8 else 0.0
    torch.testing.assert_close(kv.cpu().float(), untouched.float(), rtol=relative, atol=max(step, quantum))


def _on(tensor: Tensor | None, device: str) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
