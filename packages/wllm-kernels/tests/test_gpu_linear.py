"""Linear layers for few tokens on a GPU: against float64, against themselves, in a chain of overlapping launches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_gpu_graphs import capture

from wllm_kernels import PackedLinear, linear, pack_linear
from wllm_kernels.selfcheck.agreement import check_linear

pytestmark = pytest.mark.gpu

DTYPES = [torch.float16, torch.bfloat16]


@pytest.fixture
def skinny(device_code: Callable[[], set[str]]) -> None:
    """The kernel of few tokens runs from the first call of a test on."""
    check_linear("cuda", torch.float16, 2, 8, 8, "silu")
    assert "linear" in device_code()


def layer(outputs: int, inputs: int, dtype: torch.dtype) -> PackedLinear:
    return pack_linear(torch.randn(outputs, inputs, device="cuda").to(dtype) / inputs**0.5)


@pytest.mark.usefixtures("skinny")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [*range(1, 18), 25, 32])
def test_tokens(dtype: torch.dtype, tokens: int) -> None:
    for outputs, inputs in ((1152, 896), (22, 136), (200, 8200)):
        check_linear("cuda", dtype, tokens, outputs, inputs, "silu")


@pytest.mark.usefixtures("skinny")
@pytest.mark.parametrize(("outputs", "inputs"), [(896, 4864), (9728, 896), (40_000, 896), (6144, 4096), (4096, 14336)])
def test_sizes(outputs: int, inputs: int) -> None:
    check_linear("cuda", torch.bfloat16, 5, outputs, inputs, "gelu_tanh")


@pytest.mark.usefixtures("skinny")
@pytest.mark.parametrize(("outputs", "inputs"), [(896, 896), (9728, 896), (4096, 4096)])
def test_a_token_does_not_depend_on_its_neighbours(outputs: int, inputs: int) -> None:
    packed, x = layer(outputs, inputs, torch.bfloat16), torch.randn(16, inputs, device="cuda").bfloat16()
    together = linear(x, packed)
    for first, last in ((0, 1), (3, 11), (8, 16), (0, 15)):
        assert torch.equal(linear(x[first:last], packed), together[first:last])


@pytest.mark.usefixtures("skinny")
@pytest.mark.parametrize("tokens", [1, 9])
def test_a_chain_waits_for_each_of_its_links(tokens: int) -> None:
    layers = [layer(1024, 1024, torch.bfloat16) for _ in range(40)]
    x = torch.randn(tokens, 1024, device="cuda").bfloat16()

    def chain(wait: bool) -> torch.Tensor:
        result = x
        for packed in layers:
            result = linear(result, packed)
            if wait:
                torch.cuda.synchronize()
        return result

    expected = chain(wait=True)
    for _ in range(20):
        assert torch.equal(chain(wait=False), expected)


@pytest.mark.usefixtures("skinny")
def test_a_graph_reads_what_is_there_when_it_is_replayed() -> None:
    packed, x = layer(640, 896, torch.bfloat16), torch.zeros(4, 896, device="cuda").bfloat16()
    out = []
    graph = capture(lambda: out.append(linear(x, packed, out_dtype=torch.float32)))
    for _ in range(3):
        x.copy_(torch.randn(4, 896))
        graph.replay()
        assert torch.equal(out[-1], linear(x, packed, out_dtype=torch.float32))


@pytest.mark.usefixtures("device_code")
def test_more_tokens_take_the_library_to_the_same_results() -> None:
    packed, x = layer(512, 256, torch.bfloat16), torch.randn(40, 256, device="cuda").bfloat16()
    few = torch.cat([linear(part, packed, out_dtype=torch.float32) for part in x.split(8)])
    many = linear(x, packed, out_dtype=torch.float32)
    torch.testing.assert_close(many, few, rtol=1e-4, atol=1e-4)
    assert many.dtype == few.dtype == torch.float32
