"""Packed linear layers against float64."""

from __future__ import annotations

import pytest
import torch

from wllm_kernels import InvalidArgument, act_mul, linear, linear_act, pack_linear


@pytest.mark.parametrize("rows", [0, 1, 3, 17, 130])
@pytest.mark.parametrize("shape", [(7, 5), (960, 576)])
@pytest.mark.parametrize("biased", [False, True])
def test_agreement(device: str, rows: int, shape: tuple[int, int], biased: bool) -> None:
    weight, x = torch.randn(shape, device=device), torch.randn(rows, shape[1], device=device)
    bias = torch.randn(shape[0], device=device) if biased else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    torch.testing.assert_close(linear(x, pack_linear(weight, bias)).double(), expected, atol=2e-4, rtol=1e-4)


def test_strided_input_of_three_dimensions(device: str) -> None:
    weight, x = torch.randn(6, 8, device=device), torch.randn(2, 3, 16, device=device)[..., ::2]
    torch.testing.assert_close(linear(x, pack_linear(weight)), x @ weight.T, atol=1e-5, rtol=1e-5)


def test_parameters_need_no_gradient(device: str) -> None:
    layer = torch.nn.Linear(4, 4, device=device)
    assert not linear(torch.randn(2, 4, device=device), pack_linear(layer.weight, layer.bias)).requires_grad


def test_float32_on_the_cpu_is_packed() -> None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("this torch has no oneDNN")
    assert pack_linear(torch.zeros(2, 2)).format == "onednn"
    assert pack_linear(torch.zeros(2, 2, dtype=torch.bfloat16)).format == "dense"


def test_results_in_float32(device: str) -> None:
    weight, x = torch.randn(6, 8, device=device), torch.randn(3, 8, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        packed, rows = pack_linear(weight.to(dtype)), x.to(dtype)
        out = linear(rows, packed, out_dtype=torch.float32)
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, linear(rows, packed).float(), atol=1e-5, rtol=2**-8)
        given = torch.full((4, 6), torch.nan, device=device)
        assert linear(rows, packed, out_dtype=torch.float32, out=given[:3]) is not None
        assert torch.equal(given[:3], out) and bool(given[3].isnan().all())
    with pytest.raises(InvalidArgument, match=r"out has shape \[4, 6\]"):
        linear(x, pack_linear(weight), out=given)
    with pytest.raises(InvalidArgument, match=r"out_dtype is torch\.float16 and x has torch\.float32; pass that or"):
        linear(x, pack_linear(weight), out_dtype=torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_activation(device: str, dtype: torch.dtype) -> None:
    packed = pack_linear(torch.randn(10, 8, device=device).to(dtype), torch.randn(10, device=device).to(dtype))
    for tokens in (1, 20):
        x = torch.randn(tokens, 8, device=device).to(dtype)
        assert torch.equal(linear_act(x, packed, "silu"), act_mul(linear(x, packed), "silu"))


def test_what_gates_nothing() -> None:
    packed = pack_linear(torch.zeros(3, 2))
    with pytest.raises(InvalidArgument, match=r"the layer 3 outputs; pass \[tokens, in_features\] and an even number"):
        linear_act(torch.zeros(1, 2), packed, "silu")
    with pytest.raises(InvalidArgument, match="kind is 'relu'; pass one of silu, gelu, gelu_tanh"):
        linear_act(torch.zeros(1, 2), packed, "relu")  # type: ignore[arg-type]


def test_bias_on_another_device() -> None:
    with pytest.raises(InvalidArgument, match="bias is on meta and the first argument on cpu"):
        pack_linear(torch.zeros(2, 2), torch.zeros(2, device="meta"))


def test_wrong_width() -> None:
    with pytest.raises(InvalidArgument, match=r"x has shape \[1, 3\]; its last dimension must be 2"):
        linear(torch.zeros(1, 3), pack_linear(torch.zeros(4, 2)))
