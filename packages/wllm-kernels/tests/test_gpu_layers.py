"""Norm, rotation with the cache write, activation and block copies on a GPU against the reference on the CPU."""

from __future__ import annotations

import pytest
import torch

from wllm_kernels import Activation
from wllm_kernels.selfcheck.agreement import FP8, Rotation, Shape, check_activation, check_norm, check_rope
from wllm_kernels.selfcheck.agreement_tokens import check_copy_blocks, check_step, check_swap_blocks

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("device_code")]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
_TOO_OLD_FOR_FP8 = not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9)
CACHES = [
    None,
    torch.int8,
    pytest.param(FP8, marks=pytest.mark.skipif(_TOO_OLD_FOR_FP8, reason="FP8 needs compute capability 8.9")),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 576, 896, 1000, 4096, 5001, 8192, 20_000])
@pytest.mark.parametrize("residual", [False, True])
def test_norm(dtype: torch.dtype, size: int, residual: bool) -> None:
    for rows, offset in ((1, 0.0), (67, 1.0), (130, 0.0)):
        check_norm("cuda", dtype, rows, size, residual=residual, offset=offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_activation(dtype: torch.dtype, kind: Activation) -> None:
    for rows, size in ((1, 1), (1, 4864), (3, 333), (150, 1536)):
        check_activation("cuda", dtype, rows, size, kind)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("head_norms", [False, True])
def test_rope(dtype: torch.dtype, cache: torch.dtype | None, head_norms: bool) -> None:
    for heads, kv_heads, dim, block in (
        (14, 2, 64, 16),
        (6, 3, 80, 32),
        (4, 4, 96, 64),
        (8, 2, 128, 16),
        (2, 1, 256, 16),
    ):
        shape = Shape(heads, kv_heads, dim, block, dtype, cache)
        for rotation in (Rotation(dim), Rotation(dim // 2, interleaved=True), Rotation(dim // 4)):
            for tokens in (1, 37):
                check_rope("cuda", shape, Rotation(rotation.rotary_dim, rotation.interleaved, head_norms), tokens)
    # Enough tokens for two heads a lane; an odd number of heads.
    check_rope("cuda", Shape(7, 1, 128, 16, dtype, cache), Rotation(128, head_norms=head_norms), 700)


@pytest.mark.parametrize("seed", range(12))
def test_step(seed: int) -> None:
    check_step("cuda", seed, num_rows=1 + 3 * seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("num_pairs", [1, 3, 40, 300])
def test_copy_blocks(dtype: torch.dtype, num_pairs: int) -> None:
    check_copy_blocks("cuda", dtype, num_pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("num_pairs", [1, 40])
def test_swap_blocks(dtype: torch.dtype, num_pairs: int) -> None:
    check_swap_blocks("cuda", dtype, num_pairs)
