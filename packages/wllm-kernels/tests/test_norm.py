"""RMS norm and gated activations against float64."""

from __future__ import annotations

import math

import pytest
import torch

from wllm_kernels import Activation, InvalidArgument, act_mul, rms_norm


@pytest.mark.parametrize("shape", [(1, 5), (7, 576), (2, 3, 64)])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(device: str, shape: tuple[int, ...], offset: float) -> None:
    x, weight = torch.randn(shape, device=device), torch.randn(shape[-1], device=device)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (weight.double() + offset)
    out = rms_norm(x, weight, 1e-5, weight_offset=offset)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_residual_is_added_in_place(device: str) -> None:
    x, residual = torch.randn(4, 32, device=device), torch.randn(4, 32, device=device)
    total = x + residual
    normed, returned = rms_norm(x, torch.ones(32, device=device), 1e-5, residual)
    assert returned is residual and torch.equal(residual, total)
    assert torch.equal(normed, rms_norm(total, torch.ones(32, device=device), 1e-5))


def test_bfloat16_rounds_before_the_weight(device: str) -> None:
    x, weight = torch.randn(6, 64, device=device).bfloat16(), torch.randn(64, device=device).bfloat16()
    wide = x.float()
    expected = weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).bfloat16()
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected, atol=0, rtol=2**-7)


def test_results_in_given_memory(device: str) -> None:
    x, weight = torch.randn(3, 64, device=device), torch.randn(64, device=device)
    normed, activated = rms_norm(x, weight, 1e-5), act_mul(x, "silu")
    out = torch.empty(3, 32, device=device)
    assert act_mul(x, "silu", out=out) is out and torch.equal(out, activated)
    assert rms_norm(x, weight, 1e-5, out=x) is x and torch.equal(x, normed)


def test_result_of_another_shape() -> None:
    with pytest.raises(InvalidArgument, match=r"out has shape \[2, 4\]; pass a tensor of shape \[2, 8\]"):
        rms_norm(torch.zeros(2, 8), torch.zeros(8), 1e-5, out=torch.zeros(2, 4))


def test_weight_of_another_size() -> None:
    with pytest.raises(InvalidArgument, match=r"weight has shape \[4\]; pass a tensor of shape \[8\]"):
        rms_norm(torch.zeros(2, 8), torch.zeros(4), 1e-5)


def act(kind: str, value: float) -> float:
    if kind == "silu":
        return value / (1 + math.exp(-value))
    if kind == "gelu":
        return value * 0.5 * (1 + math.erf(value / math.sqrt(2)))
    return 0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_act_mul(device: str, kind: Activation) -> None:
    x = torch.randn(3, 14, device=device)
    expected = [[act(kind, row[i]) * row[7 + i] for i in range(7)] for row in x.tolist()]
    torch.testing.assert_close(act_mul(x, kind).cpu(), torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_unknown_activation() -> None:
    with pytest.raises(InvalidArgument, match="kind is 'relu'; pass one of silu, gelu, gelu_tanh"):
        act_mul(torch.zeros(1, 2), "relu")  # type: ignore[arg-type]


def test_odd_width() -> None:
    with pytest.raises(InvalidArgument, match=r"x has shape \[1, 3\]"):
        act_mul(torch.zeros(1, 3), "silu")
