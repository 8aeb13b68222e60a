"""The linear layers for few tokens in the emulator against the reference, and against themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, reference
from wllm_kernels.device import activation, linear
from wllm_kernels.device.kernel import DeviceProperties, Kernel

DTYPES = [torch.float16, torch.bfloat16]

RINGS = {"short": DeviceProperties(89, 4, 99 * 1024), "long": DeviceProperties(90, 1000, 227 * 1024)}


def launches(ring: str) -> int:
    return sum(kernel.launches for kernel in Kernel.all if kernel.name.startswith(f"linear_{ring}_"))


@pytest.fixture(params=RINGS)
def ring(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """The emulator's own, small GPU, and one that has room for long rings; nothing else is launched."""
    monkeypatch.setattr(emulator, "properties", lambda device: RINGS[request.param])
    before = {ring: launches(ring) for ring in RINGS}
    yield
    assert [ring for ring in RINGS if launches(ring) > before[ring]] == [request.param]


def layer(
    emulator: Emulator, dtype: torch.dtype, outputs: int, inputs: int, *, biased: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias; the weight is read before the previous kernel has ended."""
    weight = emulator.guard(torch.randn(outputs, inputs).to(dtype), constant=True)
    return weight, emulator.guard(torch.randn(outputs).to(dtype), constant=True) if biased else None


def run(
    emulator: Emulator, x: Tensor, weight: Tensor, bias: Tensor | None, kind: str | None, dtype: torch.dtype
) -> Tensor:
    """The kernel's result, in memory that held NaN."""
    results = weight.shape[0] if kind is None else weight.shape[0] // 2
    out = emulator.guard(torch.full((x.shape[0], results), torch.nan, dtype=dtype))
    linear.skinny_linear(x, weight, bias, kind, out)
    return out


def check(emulator: Emulator, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
    """Float32 sums apart from their order, and rounded once."""
    out = run(emulator, x, weight, bias, None, dtype)
    expected = torch.empty(out.shape)
    reference.skinny_linear(x, weight, bias, None, expected)
    torch.testing.assert_close(
        out.float(), expected, atol=1e-4, rtol=1e-5 if out.dtype == torch.float32 else torch.finfo(dtype).eps
    )


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [*range(1, 18), 24, 25, 31, 32])
def test_tokens(emulator: Emulator, dtype: torch.dtype, tokens: int) -> None:
    emulator.seed = tokens
    weight, bias = layer(emulator, dtype, 21, 328, biased=True)
    check(emulator, emulator.guard(torch.randn(tokens, 328).to(dtype)), weight, bias, dtype)


# One piece of a slot; half of one; two slots; 17 of them, two or three for each warp; the ring many times over.
@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("inputs", [8, 72, 256, 2056, 6152])
def test_inputs(emulator: Emulator, inputs: int) -> None:
    weight, _ = layer(emulator, torch.bfloat16, 24, inputs)
    check(emulator, emulator.guard(torch.randn(3, inputs).bfloat16()), weight, None, torch.float32)


# Blocks with a whole tile and with a part of one.
@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("outputs", [1, 8, 16, 17, 136, 201])
@pytest.mark.parametrize("tokens", [2, 11])
def test_outputs(emulator: Emulator, outputs: int, tokens: int) -> None:
    for emulator.seed in range(3):
        weight, bias = layer(emulator, torch.float16, outputs, 200, biased=True)
        check(emulator, emulator.guard(torch.randn(tokens, 200).half()), weight, bias, torch.float32)


def test_rows_of_a_wider_tensor(emulator: Emulator) -> None:
    wide = torch.full((5, 136), torch.nan).bfloat16()
    x = wide[:, 16:112]
    x.normal_()
    weight, _ = layer(emulator, torch.bfloat16, 40, 96)
    check(emulator, x, weight, None, torch.bfloat16)


def test_a_token_does_not_depend_on_its_neighbours(emulator: Emulator) -> None:
    weight, _ = layer(emulator, torch.bfloat16, 100, 2120)
    x = torch.randn(32, 2120).bfloat16()
    x[9], x[4], x[29] = torch.nan, torch.inf, torch.nan
    together = run(emulator, emulator.guard(x), weight, None, None, torch.float32)
    for first, last in ((0, 8), (8, 16), (6, 7), (4, 15), (9, 30)):
        some = run(emulator, emulator.guard(x[first:last]), weight, None, None, torch.float32)
        assert torch.equal(some.nan_to_num(), together[first:last].nan_to_num())
    assert together[[*range(4), *range(5, 9), *range(10, 29), 30, 31]].isfinite().all()


def test_sums_do_not_depend_on_the_ring(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = layer(emulator, torch.bfloat16, 72, 2120, biased=True)
    x = emulator.guard(torch.randn(3, 2120).bfloat16())
    results = []
    for gpu in RINGS.values():
        monkeypatch.setattr(emulator, "properties", lambda device, gpu=gpu: gpu)
        results.append(run(emulator, x, weight, bias, None, torch.float32))
    assert torch.equal(*results)


# Four warps, where a layer has many outputs and fewer inputs.
@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("inputs", [8, 520])
def test_a_wide_layer(emulator: Emulator, inputs: int) -> None:
    assert linear.warps_of(4096, inputs) < linear.warps_of(4096, 4096) == linear.warps_of(1152, inputs)
    weight, bias = layer(emulator, torch.bfloat16, 4096, inputs, biased=True)
    x = emulator.guard(torch.randn(2, inputs).bfloat16())
    check(emulator, x, weight, bias, torch.float32)
    expected = torch.empty(2, 2048).bfloat16()
    activation.act_mul(run(emulator, x, weight, bias, None, torch.bfloat16), "silu", expected)
    assert torch.equal(run(emulator, x, weight, bias, "silu", torch.bfloat16), expected)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("results", "tokens"), [(3, 2), (40, 1), (92, 9), (24, 27)])
def test_an_activation_changes_nothing(
    emulator: Emulator, kind: str, dtype: torch.dtype, results: int, tokens: int
) -> None:
    weight, bias = layer(emulator, dtype, 2 * results, 136, biased=True)
    x = emulator.guard(torch.randn(tokens, 136).to(dtype))
    expected = torch.empty(tokens, results, dtype=dtype)
    activation.act_mul(run(emulator, x, weight, bias, None, dtype), kind, expected)
    out = run(emulator, x, weight, bias, kind, dtype)
    assert torch.equal(out, expected)
    torch.testing.assert_close(
        run(emulator, x, weight, bias, kind, torch.float32).to(dtype), expected, atol=0.0, rtol=0.0
    )


@pytest.mark.parametrize("tokens", [3, 16, 30])
def test_turing(turing: Emulator, tokens: int) -> None:
    weight, bias = layer(turing, torch.float16, 72, 2120, biased=True)
    check(turing, turing.guard(torch.randn(tokens, 2120).half()), weight, bias, torch.float16)
    assert not linear.fits(torch.zeros(1, 8).bfloat16(), torch.zeros(8, 8).bfloat16())


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.zeros(33, 8).half(), torch.zeros(8, 8).half()),
        (torch.zeros(0, 8).half(), torch.zeros(8, 8).half()),
        (torch.zeros(1, 12).half(), torch.zeros(8, 12).half()),
        (torch.zeros(1, 8), torch.zeros(8, 8)),
        (torch.zeros(1, 8).half(), torch.zeros(8, 8).bfloat16()),
        (torch.zeros(1, 8).half(), torch.zeros(8, 8).half().t()),
        (torch.zeros(2, 16).half()[:, ::2], torch.zeros(8, 8).half()),
        (torch.zeros(2, 12).half()[:, :8], torch.zeros(8, 8).half()),
        (torch.zeros(1, 16).half()[:, 1:9], torch.zeros(8, 8).half()),
    ],
)
def test_what_it_does_not_serve(emulator: Emulator, x: Tensor, weight: Tensor) -> None:
    with pytest.raises(InvalidArgument, match="device code takes 1 to 32 tokens of float16 or bfloat16, rows that"):
        linear.skinny_linear(x, weight, None, None, torch.empty(x.shape[0], 8))


# Outputs and inputs of layers, measured on an H200; the last number of tokens for which our kernel is the faster one.
@pytest.mark.parametrize(
    ("outputs", "inputs", "last"),
    [
        (1152, 896, 32),
        (896, 896, 32),
        (9728, 896, 16),
        (896, 4864, 16),
        (151936, 896, 16),
        (6144, 4096, 8),
        (4096, 4096, 16),
        (28672, 4096, 8),
        (4096, 14336, 16),
        (128256, 4096, 8),
    ],
)
def test_the_faster_one_is_chosen(outputs: int, inputs: int, last: int) -> None:
    assert [linear.pays(tokens, outputs, inputs) for tokens in (1, last, last + 1)] == [True, True, False]


def test_rings_are_long_where_all_blocks_run_at_once() -> None:
    h200, small = DeviceProperties(90, 132, 227 * 1024), DeviceProperties(89, 128, 99 * 1024)
    assert all(linear.has_long_rings(blocks, tiles, 8, h200) for blocks in (56, 132) for tiles in (1, 2, 4))
    assert linear.has_long_rings(384, 1, 4, h200) and not linear.has_long_rings(608, 1, 4, h200)
    assert not linear.has_long_rings(133, 1, 8, h200) and not linear.has_long_rings(1, 1, 8, small)
