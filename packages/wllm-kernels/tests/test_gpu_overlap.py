"""Chains of kernels that overlap give, bit by bit, what kernels give that begin when the one in front has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from wllm_kernels import act_mul, attention_plan, paged_attention, rms_norm, rope_kv_write
from wllm_kernels.device.backend import CudaBackend
from wllm_kernels.device.kernel import Kernel, backends

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")]

HEADS, KV_HEADS, DIM, BLOCK = 8, 2, 128, 16
REPEATS, LAYERS = 100, 12


@pytest.fixture(autouse=True)
def _restored_backend() -> Iterator[None]:
    before = backends[torch.device("cuda")]
    yield
    backends.register("cuda", before)


class Chain:
    """Every kernel reads what the one in front of it wrote, and writes where an earlier one read."""

    def __init__(self, tokens: int, context: int, cache: torch.dtype) -> None:
        blocks, half = tokens * (context // BLOCK), tokens * HEADS * DIM
        self.tokens, self.half = tokens, half
        shape = (blocks, 2, KV_HEADS, BLOCK, DIM)
        values = torch.randn(shape, device="cuda")
        self.kv = (20 * values).to(cache) if cache == torch.int8 else values.bfloat16().to(cache)
        self.scale = torch.rand(shape[:-1], device="cuda").half() / 50 if cache == torch.int8 else None
        self.mixed, self.residual = (torch.randn(2 * tokens, HEADS * DIM, device="cuda").bfloat16() for _ in range(2))
        self.normed = torch.empty_like(self.mixed)
        self.weight = torch.randn(HEADS * DIM, device="cuda").bfloat16()
        table = torch.randperm(blocks, device="cuda").int().view(tokens, -1)
        self.rows = table, torch.full((tokens,), context, device="cuda").int(), torch.arange(tokens + 1).int().cuda()
        self.positions = torch.full((tokens,), context - 1, device="cuda")
        self.cos_sin = torch.randn(context, DIM, device="cuda")
        self.cells = (table[:, -1].long() * BLOCK + BLOCK - 1).contiguous()
        self.q = torch.empty(tokens, HEADS, DIM, device="cuda").bfloat16()
        self.plan = attention_plan(self.kv, *self.rows, num_heads=HEADS, max_queries=1)
        self.workspace = torch.empty(self.plan.workspace_elements, dtype=cache, device="cuda")
        self.begin = [tensor.clone() for tensor in self.state()]

    def state(self) -> list[Tensor]:
        changed = [self.mixed, self.residual, self.kv, *([] if self.scale is None else [self.scale])]
        return [tensor.view(torch.uint8) for tensor in changed]

    def run(self) -> None:
        # A copy in front of a kernel, in a graph too.
        for tensor, value in zip(self.state(), self.begin, strict=True):
            tensor.copy_(value)
        attended, activated = self.mixed.view(-1)[: self.half], self.mixed.view(-1)[self.half :]
        qkv = self.normed.view(-1)[: self.tokens * (HEADS + 2 * KV_HEADS) * DIM].view(self.tokens, -1)
        for _ in range(LAYERS):
            rms_norm(self.mixed, self.weight, 1e-5, self.residual, out=self.normed)
            act_mul(self.normed.view(self.tokens, -1), "silu", activated.view(self.tokens, -1))
            rope_kv_write(
                qkv, self.positions, self.cos_sin, self.kv, self.cells, num_heads=HEADS, num_kv_heads=KV_HEADS,
                kv_scale=self.scale, out=self.q,
            )  # fmt: skip
            attention_plan(self.kv, *self.rows, num_heads=HEADS, max_queries=1, out=self.plan)
            paged_attention(
                self.q, self.kv, *self.rows, scale=DIM**-0.5, kv_scale=self.scale, plan=self.plan,
                workspace=self.workspace, out=attended.view(self.tokens, HEADS, DIM),
            )  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "context", "cache"), [(1, 256, torch.bfloat16), (4, 1024, torch.int8), (96, 512, torch.bfloat16)]
)
def test_overlap_changes_nothing(tokens: int, context: int, cache: torch.dtype) -> None:
    backends.register("cuda", CudaBackend(overlap=False))
    chain = Chain(tokens, context, cache)
    chain.run()
    expected = [tensor.clone() for tensor in chain.state()]
    assert chain.mixed.isfinite().all()
    assert not torch.equal(chain.state()[0], chain.begin[0])

    backends.register("cuda", CudaBackend())
    launches = sum(kernel.launches for kernel in Kernel.all if kernel.overlaps)
    chain.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain.run()
    assert sum(kernel.launches for kernel in Kernel.all if kernel.overlaps) == launches + 2 * 5 * LAYERS
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for repeat in range(REPEATS):
        if repeat % 2:
            graph.replay()
        else:
            chain.run()
        for tensor, value in zip(chain.state(), expected, strict=True):
            wrong += (tensor != value).any()
    assert int(wrong) == 0
