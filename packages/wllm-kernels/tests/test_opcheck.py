"""torch's own checks of every registered op: schema, fakes, dynamic shapes, and that mutation is declared."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wllm_kernels import attention_plan, rope_plan, sample_workspace_bytes
from wllm_kernels.dispatch import OPS


def int32(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def attention_arguments(planned: bool) -> tuple[object, ...]:
    kv, tables = torch.randn(6, 2, 2, 4, 8), (int32([0, 1], [2, 3]), int32(7, 6), int32(0, 1, 4))
    plan = attention_plan(kv, *tables, num_heads=4)
    tensors, sizes = (list(plan.tensors), list(plan.sizes)) if planned else ([], [])
    workspace = torch.empty(plan.workspace_elements) if planned else None
    return torch.randn(4, 4, 8), kv, *tables, 0.5, True, 0, 0.0, None, tensors, sizes, workspace, torch.empty(4, 4, 8)


def rope_arguments(planned: bool) -> tuple[object, ...]:
    qkv, kv = torch.randn(2, 6 * 8), torch.zeros(3, 2, 2, 4, 8)
    positions, cells, cos_sin = torch.tensor([0, 3]), torch.tensor([5, -1]), torch.randn(9, 8)
    plan = rope_plan(kv, positions, cos_sin, cells, dtype=torch.float32)
    tensors = list(plan.tensors) if planned else []
    return (
        qkv,
        positions,
        cos_sin,
        kv,
        cells,
        2,
        2,
        torch.ones(8),
        None,
        1e-6,
        False,
        None,
        tensors,
        torch.empty(2, 2, 8),
    )


def sample_arguments(full: bool) -> tuple[object, ...]:
    logits, out = torch.randn(2, 40), torch.empty(2, dtype=torch.int64)
    if not full:
        return logits, *[None] * 18, out
    rows = torch.tensor([0, 1])
    floats = torch.tensor([0.9, 0.5])
    tables = torch.ones(2, 40, dtype=torch.int32), torch.ones(2, 40, dtype=torch.bool)
    draw = floats, rows + 3, floats, floats, rows, rows
    bias = rows, rows, floats
    return (
        logits,
        *draw,
        *bias,
        torch.full((2, 2), 7, dtype=torch.int32),
        rows,
        rows,
        floats,
        floats,
        floats,
        *tables,
        torch.empty(sample_workspace_bytes(2, 40), dtype=torch.uint8),
        out,
    )


def step_arguments() -> tuple[object, ...]:
    outputs = [torch.empty(3, dtype=torch.int64) for _ in range(3)]
    tables = int32(range(8), range(8)), int32(range(4), range(4))
    return int32([0, 1, 1, 1], [1, 0, 2, 0]), int32(0, 1, 3), *tables, 4, *outputs, int32(0, 0), int32([0, 0], [0, 0])


CASES: dict[str, list[tuple[object, ...]]] = {
    "paged_attention": [attention_arguments(False), attention_arguments(True)],
    "rope_kv_write": [rope_arguments(False), rope_arguments(True)],
    "rms_norm": [
        (torch.randn(2, 8), torch.ones(8), 1e-5, None, 0.0, torch.empty(2, 8)),
        (torch.randn(2, 8), torch.ones(8), 1e-5, torch.randn(2, 8), 1.0, torch.empty(2, 8)),
    ],
    "act_mul": [(torch.randn(2, 8), kind, torch.empty(2, 4)) for kind in ("silu", "gelu", "gelu_tanh")],
    "skinny_linear": [
        (torch.randn(2, 8), torch.randn(6, 8), bias, kind, torch.empty(2, outputs))
        for bias, kind, outputs in ((None, None, 6), (torch.randn(6), "silu", 3))
    ],
    "prepare_step": [step_arguments()],
    "append_blocks": [(int32(range(4), range(4)), int32([1, 2, 7], [-1, 0, 0]))],
    "advance_step": [
        (int32([0, 1, 1, 1]), torch.tensor([7]), int32(range(8)), int32(0), results)
        for results in (None, torch.tensor([0]))
    ],
    "copy_blocks": [(torch.randn(3, 2, 1, 4, 8), torch.tensor([[0, 2]]))],
    "swap_blocks": [
        (torch.randn(3, 2, 1, 4, 8), torch.randn(2, 2, 1, 4, 8), torch.tensor([[2, 0]]), to_host)
        for to_host in (True, False)
    ],
    "sample": [sample_arguments(False), sample_arguments(True)],
    "logprobs": [
        (torch.randn(2, 9), torch.tensor([0, 1]), None, torch.empty(2), torch.empty(2, dtype=torch.int64),
         torch.empty(2, 3, dtype=torch.int64), torch.empty(2, 3)),
    ],
}  # fmt: skip


def test_every_op_has_a_case() -> None:
    assert set(CASES) == {op.name for op in OPS}


# torch imports parts of itself that warn of their own deprecations.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("name", "number"), [(name, i) for name, cases in CASES.items() for i in range(len(cases))])
def test_opcheck(name: str, number: int) -> None:
    torch.library.opcheck(getattr(torch.ops.wllm, name).default, CASES[name][number])
