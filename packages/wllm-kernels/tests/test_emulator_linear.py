"""The linear layers for few tokens in the emulator against the reference, and against themselves."""

from __future__ import annotations

import pytest
import torch
from emulator.backend import Emulator
from torch import Tensor

from wllm_kernels import InvalidArgument, reference
from wllm_kernels.device import activation, linear

DTYPES = [torch.float16, torch.bfloat16]


@pytest.fixture
def tile(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """Outputs of a tile, in place of what the launch code would choose."""
    monkeypatch.setattr(linear, "tile_of", lambda *_: request.param)
    return int(request.param)


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


@pytest.mark.parametrize("tile", [8, 16], indirect=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [*range(1, 18), 24, 25, 31, 32])
def test_tokens(emulator: Emulator, tile: int, dtype: torch.dtype, tokens: int) -> None:
    emulator.seed = tokens
    weight, bias = layer(emulator, dtype, 21, 328, biased=True)
    check(emulator, emulator.guard(torch.randn(tokens, 328).to(dtype)), weight, bias, dtype)


# One piece of a slot; half of one; two slots; 17 of them, two or three for each warp; the ring many times over.
@pytest.mark.parametrize("tile", [8, 16], indirect=True)
@pytest.mark.parametrize("inputs", [8, 72, 256, 2056, 6152])
def test_inputs(emulator: Emulator, tile: int, inputs: int) -> None:
    weight, _ = layer(emulator, torch.bfloat16, 24, inputs)
    check(emulator, emulator.guard(torch.randn(3, inputs).bfloat16()), weight, None, torch.float32)


# Blocks with a whole tile and with a part of one.
@pytest.mark.parametrize("tile", [8, 16], indirect=True)
@pytest.mark.parametrize("outputs", [1, 8, 16, 17, 136, 201])
@pytest.mark.parametrize("tokens", [2, 11])
def test_outputs(emulator: Emulator, tile: int, outputs: int, tokens: int) -> None:
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


def test_sums_do_not_depend_on_the_tile(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = layer(emulator, torch.bfloat16, 72, 2120, biased=True)
    x = emulator.guard(torch.randn(3, 2120).bfloat16())
    results = []
    for tile in (8, 16):
        monkeypatch.setattr(linear, "tile_of", lambda *_, tile=tile: tile)
        results.append(run(emulator, x, weight, bias, None, torch.float32))
    assert torch.equal(*results)


# Four warps, where a layer has many outputs and few inputs.
@pytest.mark.parametrize("inputs", [8, 520])
def test_a_wide_layer(emulator: Emulator, inputs: int) -> None:
    assert linear.warps_of(4096, inputs) < linear.warps_of(4096, 4096) == linear.warps_of(64, inputs)
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


def test_many_tokens_of_a_large_layer_are_for_the_library() -> None:
    assert linear.pays(16, 128256, 4096) and not linear.pays(17, 4096, 4096) and not linear.pays(33, 896, 896)
    assert linear.pays(32, 9728, 896)


def test_small_layers_have_small_tiles() -> None:
    assert [linear.tile_of(896, False, count) for count in (28, 132)] == [16, 8]
    assert [linear.tile_of(4096, False, 132), linear.tile_of(896, True, 132)] == [16, 16]


def run_norm(
    emulator: Emulator, x: Tensor | None, residual: Tensor, norm: Tensor, weight: Tensor, kind: str | None = None
) -> tuple[Tensor, Tensor]:
    """Results in float32, and the new residual; both in memory that held NaN."""
    total = residual if x is None else emulator.guard(torch.full_like(residual, torch.nan))
    results = weight.shape[0] // (1 if kind is None else 2)
    out = emulator.guard(torch.full((residual.shape[0], results), torch.nan))
    linear.norm_linear(residual, x, norm, 1e-2, weight, None, kind, None if x is None else total, out)
    return out, total


# The rows of the weight are of the unit matrix, so that the results are some of what was normed.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "inputs"), [(1, 8), (1, 2120), (1, 8264), (3, 840), (2, 4104), (4, 136), (4, 2048)])
@pytest.mark.parametrize("added", [True, False])
def test_norm(emulator: Emulator, dtype: torch.dtype, tokens: int, inputs: int, added: bool) -> None:
    emulator.seed = tokens
    wide = torch.full((tokens, inputs + 24), torch.nan).to(dtype)
    x = wide[:, 8 : 8 + inputs].normal_() if added else None
    residual = emulator.guard((2 * torch.randn(tokens, inputs)).to(dtype))
    norm = emulator.guard(torch.randn(inputs).to(dtype), constant=True)
    columns = torch.linspace(0, inputs - 1, 64).int()
    unit = emulator.guard((columns[:, None] == torch.arange(inputs)).to(dtype), constant=True)
    before = residual.clone()
    out, total = run_norm(emulator, x, residual, norm, unit)
    expected_total, expected = torch.empty_like(residual), torch.empty(tokens, 64)
    reference.norm_linear(residual, x, norm, 1e-2, unit, None, None, expected_total, expected)
    assert torch.equal(total, expected_total) and torch.equal(residual, before)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=2 * torch.finfo(dtype).eps)
    assert (out == expected).float().mean() > 0.95


@pytest.mark.parametrize("kind", [None, "silu"])
def test_norm_in_front_of_a_layer(emulator: Emulator, kind: str | None) -> None:
    weight, _ = layer(emulator, torch.float16, 200, 264)
    x, residual, norm = (emulator.guard(torch.randn(size).half()) for size in ((4, 264), (4, 264), (264,)))
    norm = emulator.guard(norm, constant=True)
    out, _ = run_norm(emulator, x, residual, norm, weight, kind)
    expected = torch.empty_like(out)
    reference.norm_linear(residual, x, norm, 1e-2, weight, None, kind, None, expected)
    torch.testing.assert_close(out, expected, atol=0.05, rtol=0.01)


def test_norm_on_turing(turing: Emulator) -> None:
    weight, _ = layer(turing, torch.float16, 24, 2120)
    residual, norm = turing.guard(torch.randn(1, 2120).half()), turing.guard(torch.ones(2120).half(), constant=True)
    out, _ = run_norm(turing, None, residual, norm, weight)
    expected = torch.empty_like(out)
    reference.norm_linear(residual, None, norm, 1e-2, weight, None, None, None, expected)
    torch.testing.assert_close(out, expected, atol=0.05, rtol=0.01)


@pytest.mark.parametrize(
    ("tokens", "inputs", "serves"),
    [(4, 2048, True), (2, 4096, True), (1, 8192, True), (5, 64, False), (4, 2056, False), (1, 8296, False)],
)
def test_a_norm_of_as_many_tokens_as_a_block_holds(tokens: int, inputs: int, serves: bool) -> None:
    residual, norm, weight = (torch.zeros(size).half() for size in ((tokens, inputs), (inputs,), (8, inputs)))
    assert linear.fits_norm(None, residual, norm, weight) is serves
    if not serves:
        with pytest.raises(
            InvalidArgument, match="the kernel with a norm takes up to 4 tokens of 16640 bytes together"
        ):
            linear.norm_linear(residual, None, norm, 1e-5, weight, None, None, None, torch.zeros(tokens, 8))
