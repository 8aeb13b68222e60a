"""CUDA graphs: captured once, replayed with other lengths, tables and values in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from wllm_kernels import (
    Draw,
    act_mul,
    advance_step,
    paged_attention,
    prepare_step,
    reference,
    rms_norm,
    sample,
    step_inputs,
)
from wllm_kernels.selfcheck.agreement import Mask, Shape, Step, assert_attention, make_step, plan_of
from wllm_kernels.selfcheck.agreement_tokens import (
    BLOCK,
    MAX_BLOCKS,
    MAX_TOKENS,
    SLOTS,
    make_draw,
    make_rows,
    to_device,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device_code")]


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of `work`, which has run once before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def static(steps: Sequence[Step]) -> Step:
    """Memory on the GPU for any one of the steps."""
    largest = {
        name: [max(sizes) for sizes in zip(*(getattr(step, name).shape for step in steps))]
        for name in ("q", "kv", "block_table", "seq_lens", "cu_q")
    }
    buffers = {
        name: torch.zeros(shape, dtype=getattr(steps[0], name).dtype, device="cuda") for name, shape in largest.items()
    }
    scale = steps[0].kv_scale
    if scale is not None:
        scale = torch.zeros(largest["kv"][:-1], dtype=scale.dtype, device="cuda")
    return Step(steps[0].shape, **buffers, kv_scale=scale, max_queries=max(step.max_queries for step in steps))


def load(buffers: Step, step: Step) -> None:
    """Copy a step into them; what it does not fill is unusable."""
    buffers.q.fill_(torch.nan)[: len(step.q)] = step.q
    buffers.kv[: len(step.kv)] = step.kv.cuda()
    if buffers.kv_scale is not None and step.kv_scale is not None:
        buffers.kv_scale[: len(step.kv)] = step.kv_scale.cuda()
    buffers.block_table.fill_(2**30)[:, : step.block_table.shape[1]] = step.block_table
    buffers.seq_lens.copy_(step.seq_lens)
    buffers.cu_q.copy_(step.cu_q)


def replay_all(shape: Shape, mask: Mask, batches: Sequence[tuple[list[int], list[int]]]) -> None:
    """Capture plan and attention of the first batch, and replay them for every one."""
    steps = [make_step(shape, lengths, counts, seed=i) for i, (lengths, counts) in enumerate(batches)]
    buffers = static(steps)
    load(buffers, steps[0])
    plan, out = plan_of(buffers, mask), torch.empty_like(buffers.q)
    workspace = torch.empty(plan.workspace_elements, dtype=buffers.kv.dtype, device="cuda")

    def work() -> None:
        plan_of(buffers, mask, out=plan)
        for _ in range(2):  # two layers share the plan and the workspace
            paged_attention(
                buffers.q, buffers.kv, *buffers.tables, scale=shape.dim**-0.5, causal=mask.causal, window=mask.window,
                softcap=mask.softcap, kv_scale=buffers.kv_scale, plan=plan, workspace=workspace, out=out,
            )  # fmt: skip

    graph = capture(work)
    for step in (*steps, *reversed(steps)):
        load(buffers, step)
        out.fill_(torch.nan)
        graph.replay()
        assert_attention(step, mask, out[: len(step.q)])
        assert not out[len(step.q) :].any(), "a token of no row is not zero"


@pytest.mark.parametrize("cache", [None, torch.int8])
@pytest.mark.parametrize("dim", [64, 128])
def test_decode(dim: int, cache: torch.dtype | None) -> None:
    ones = [1] * 5
    batches = [([1, 2, 3, 4, 5], ones), ([3000, 17, 0, 900, 64], ones), ([16, 8000, 5, 33, 1], ones)]
    replay_all(Shape(heads=14, kv_heads=2, dim=dim, cache=cache), Mask(), batches)
    replay_all(Shape(heads=14, kv_heads=2, dim=dim, cache=cache), Mask(window=200), batches)


def test_mixed_batches() -> None:
    batches = [
        ([300, 70, 9], [200, 1, 1]),
        ([1, 500, 40], [1, 250, 1]),
        ([33, 17, 900], [1, 1, 1]),
        ([120, 120, 120], [120, 60, 20]),
        ([0, 0, 5], [1, 0, 5]),
    ]
    replay_all(Shape(dim=128), Mask(), batches)
    replay_all(Shape(dim=128), Mask(window=50), batches)
    replay_all(Shape(dim=64, dtype=torch.float32), Mask(), batches)


@pytest.mark.parametrize("filters", [False, True])
def test_sampler(filters: bool) -> None:
    rows, vocab = 12, 20_000
    draws = []
    for seed in range(4):
        torch.manual_seed(seed)
        draws.append(make_draw(rows, vocab, filters=filters))
    buffers = to_device(draws[0], "cuda")
    logits, out = torch.randn(rows, vocab, device="cuda"), torch.empty(rows, dtype=torch.int64, device="cuda")
    graph = capture(lambda: sample(logits, draw=buffers, out=out))
    different = 0
    for draw in draws:
        logits.normal_(0, 3)
        # What was greedy becomes random, and the other way round.
        turned = Draw(*(None if (value := getattr(draw, name)) is None else value.flip(0) for name in FIELDS))
        for name in FIELDS:
            target, value = getattr(buffers, name), getattr(turned, name)
            if target is not None:
                target.copy_(value)
        graph.replay()
        different += int((out.cpu() != sample(logits.cpu(), draw=turned)).sum())
    assert different <= 1


FIELDS = tuple(Draw.__dataclass_fields__)


def test_bookkeeping() -> None:
    num_rows = 10
    width = num_rows + 3
    tables = [torch.randint(0, 1000, shape, dtype=torch.int32) for shape in ((SLOTS, MAX_TOKENS), (SLOTS, MAX_BLOCKS))]
    lengths = torch.zeros(SLOTS, dtype=torch.int32)
    num_tokens = 80 * width
    on_gpu = [tensor.cuda() for tensor in (*tables, lengths)]
    rows, cu_q = (
        torch.zeros(width, 4, dtype=torch.int32, device="cuda"),
        torch.zeros(width + 1, dtype=torch.int32, device="cuda"),
    )
    tokens = torch.zeros(width, dtype=torch.int64, device="cuda")
    out = step_inputs(num_tokens, width, MAX_BLOCKS, "cuda")

    def work() -> None:
        prepare_step(rows, cu_q, *on_gpu[:2], block_size=BLOCK, num_tokens=num_tokens, num_blocks=MAX_BLOCKS, out=out)
        advance_step(rows, tokens, on_gpu[0], on_gpu[2])

    graph = None
    for seed in range(6):
        new_rows, new_cu_q, _ = make_rows(seed, num_rows)
        new_tokens = torch.arange(width) + 1000 * seed - 1
        for target, value in ((rows, new_rows), (cu_q, new_cu_q), (tokens, new_tokens)):
            target.copy_(value)
        if graph is None:
            saved = [tensor.clone() for tensor in on_gpu]
            graph = capture(work)
            for target, value in zip(on_gpu, saved):
                target.copy_(value)
        graph.replay()
        expected = step_inputs(num_tokens, width, MAX_BLOCKS, "cpu")
        reference.prepare_step(new_rows, new_cu_q, *tables, BLOCK, *expected)
        count = int((new_rows[:, 3] > 0).sum())
        reference.advance_step(new_rows, new_tokens[:count], tables[0], lengths, None)
        for actual, wanted in zip((*out, on_gpu[0], on_gpu[2]), (*expected, tables[0], lengths)):
            assert torch.equal(actual.cpu(), wanted)


def test_layer_ops() -> None:
    x, weight = torch.randn(3, 512, device="cuda"), torch.randn(512, device="cuda")
    result: list[Tensor] = []

    def work() -> None:
        result[:] = [act_mul(rms_norm(x, weight, 1e-5), "silu")]

    graph = capture(work)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(result[0], act_mul(rms_norm(x, weight, 1e-5), "silu"))
