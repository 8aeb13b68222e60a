"""The kernels of log-probabilities in the emulator against the reference; both take the lowest id among equals."""

from __future__ import annotations

import math

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, Logprobs, logprobs, logprobs_workspace_bytes
from wllm_kernels.device import logits as device_logits
from wllm_kernels.device import logprobs as device_logprobs

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def on_device(emulator: Emulator, logits: Tensor, ids: Tensor, top_n: int) -> Logprobs:
    rows = len(logits)
    workspace = emulator.guard(torch.randint(0, 256, (logprobs_workspace_bytes(*logits.shape),), dtype=torch.uint8))
    result = Logprobs(
        torch.full((rows,), torch.nan), torch.full((rows,), -9), torch.full((rows, top_n), -9),
        torch.full((rows, top_n), torch.nan),
    )  # fmt: skip
    result = Logprobs(*(emulator.guard(tensor) for tensor in result))
    logits = emulator.guard(logits) if logits.is_contiguous() else logits
    device_logprobs.logprobs(logits, emulator.guard(ids), workspace, *result)
    return result


def check(emulator: Emulator, logits: Tensor, top_n: int) -> None:
    ids = torch.randint(0, logits.shape[1], (len(logits),))
    actual, expected = on_device(emulator, logits, ids, top_n), logprobs(logits, ids, top_n)
    assert torch.equal(actual.rank, expected.rank)
    assert torch.equal(actual.top_ids, expected.top_ids)
    for values, wanted in ((actual.logprob, expected.logprob), (actual.top_logprobs, expected.top_logprobs)):
        torch.testing.assert_close(values, wanted, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("top_n", [0, 1, 20, 1003])
@pytest.mark.parametrize("slice_step", [64, 4096])
def test_agreement(
    emulator: Emulator, dtype: torch.dtype, top_n: int, slice_step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_logits, "SLICE_STEP", slice_step)
    check(emulator, (5 * torch.randn(4, 1003)).to(dtype), top_n)


@pytest.mark.parametrize("top_n", [1, 20, 2048, 2049, 5000])
def test_more_than_a_block_orders_at_once(emulator: Emulator, top_n: int) -> None:
    logits = torch.randn(3, 5000)
    logits[1] = logits[1].round()
    logits[2] = 0.5
    check(emulator, logits, top_n)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("top_n", [0, 3, 300])
def test_rows_that_are_not_finite(emulator: Emulator, value: float, top_n: int) -> None:
    logits = torch.randn(4, 300)
    logits[0, 2] = logits[1, 5:] = value
    logits[2] = value
    check(emulator, logits, top_n)


@pytest.mark.parametrize("first", [0, 1])
def test_rows_of_a_wider_tensor(emulator: Emulator, first: int) -> None:
    wide = torch.full((3, 90), torch.nan)
    logits = wide[:, first : first + 70]
    logits.normal_()
    check(emulator, logits, 5)
    check(emulator, logits[:1].expand(5, -1), 5)


def test_more_rows_than_a_launch_takes(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_logprobs, "ROWS_PER_LAUNCH", 4)
    check(emulator, torch.randn(11, 60), 3)


def test_no_such_token(emulator: Emulator) -> None:
    result = on_device(emulator, torch.randn(2, 60), torch.tensor([-1, 60]), 2)
    assert result.logprob.isnan().all() and result.top_logprobs.isfinite().all()


def test_workspace_too_small(emulator: Emulator) -> None:
    outputs = (torch.empty(2), torch.empty(2, dtype=torch.int64), torch.empty(2, 0), torch.empty(2, 0))
    with pytest.raises(InvalidArgument, match=r"workspace has 10 bytes at 0x.*; pass .* contiguous bytes"):
        device_logprobs.logprobs(torch.zeros(2, 70), outputs[1], torch.empty(10, dtype=torch.uint8), *outputs)
