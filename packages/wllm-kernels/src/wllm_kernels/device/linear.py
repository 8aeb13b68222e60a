"""Launch of the linear layers for few tokens; `fits` says which calls they serve."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from wllm_kernels.device.activation import KINDS
from wllm_kernels.device.arguments import is_aligned, row_stride
from wllm_kernels.device.kernel import Kernel, backends
from wllm_kernels.errors import InvalidArgument

MAX_TOKENS = 32
_AMPERE = 80
_SUFFIXES = {torch.float16: "f16", torch.bfloat16: "bf16"}
_NO_ACTIVATION = -1
# Warps share the inputs: eight, or four of them where a layer is wide and its inputs are few. Nothing but the shape of
# the layer may enter here: the number of warps is what a sum's rounding depends on, and a token's result shall not
# change with its neighbours, its activation or the GPU.
_WARPS, _WIDE, _FEW_INPUTS = (4, 8), 4096, 1024

_LAYOUT = "7Qq5if"
_SMALL_WEIGHT = 10_000_000  # elements
# Tokens that every block normalises for itself: as many as take so much of its shared memory.
_NORM_TOKENS, _NORM_BYTES = 4, 16640


def _shared_bytes(tile: int, token_tiles: int, warps: int, ring_bytes: int) -> int:
    return warps * (ring_bytes + 8 * token_tiles * (tile + 4) * 4)


def _kernels(ring_bytes: int, dtypes: tuple[torch.dtype, ...]) -> dict[tuple[torch.dtype, int, int, int], Kernel]:
    """By dtype, outputs of a tile, tiles of eight tokens (0: the kernel with a norm), and warps."""
    kernels = {}
    for dtype, tile, warps in product(dtypes, (8, 16), _WARPS):
        for token_tiles, prefix, norm_bytes in ((0, "norm_", _NORM_BYTES), (1, "", 0), (2, "", 0), (4, "", 0)):
            name = f"{prefix}linear_{_SUFFIXES[dtype]}_{tile}x{8 * max(token_tiles, 1)}"
            shared = _shared_bytes(tile, max(token_tiles, 1), warps, ring_bytes) + norm_bytes
            kernels[dtype, tile, token_tiles, warps] = Kernel(
                "linear", name, _LAYOUT, 32 * warps, shared, overlaps=True
            )
    return kernels


# RING_BYTES of linear.cu.
_KERNELS = _kernels(8192, (torch.float16, torch.bfloat16))
_TURING_KERNELS = _kernels(4096, (torch.float16,))


def warps_of(outputs: int, inputs: int) -> int:
    """Warps of a block, for a layer of this shape."""
    return _WARPS[0] if outputs >= _WIDE and inputs <= _FEW_INPUTS else _WARPS[1]


def tile_of(results: int, gated: bool, num_multiprocessors: int) -> int:
    """Outputs of a tile, the work of a block: less where there are not even enough for every other multiprocessor."""
    return 16 if gated or 2 * -(-results // 16) >= num_multiprocessors else 8


def pays(tokens: int, outputs: int, inputs: int) -> bool:
    """Whether our kernel is for so many tokens; more than that, and the library's product is faster.

    Every block reads all of x from the L2: for more than 16 tokens that is as much as its part of the weight or more.
    """
    return tokens <= 16 or (tokens <= MAX_TOKENS and outputs * inputs <= _SMALL_WEIGHT)


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether `skinny_linear` serves `x` [tokens, inputs] with this weight on its GPU."""
    tokens, inputs = x.shape
    if not 0 < tokens <= MAX_TOKENS or inputs % 8 or not inputs or x.dtype not in _SUFFIXES or weight.dtype != x.dtype:
        return False
    if not weight.numel() or not weight.is_contiguous() or (x.stride(1) != 1 and inputs > 1):
        return False
    if not is_aligned(x.data_ptr() | weight.data_ptr() | x.stride(0) * x.element_size()):
        return False
    return x.dtype == torch.float16 or backends[x.device].properties(x.device).capability >= _AMPERE


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str | None, out: Tensor) -> None:
    """`x` times the weight plus the bias, into `out`; with `kind` act(first half of that) * second half."""
    if not fits(x, weight):
        raise InvalidArgument(
            f"x has dtype {x.dtype}, shape {list(x.shape)} and strides {x.stride()}, weight {weight.dtype}, "
            f"{list(weight.shape)} and {weight.stride()}; device code takes 1 to {MAX_TOKENS} tokens of float16 or "
            "bfloat16, rows that are multiples of 16 bytes long and apart, and a contiguous weight"
        )
    token_tiles = next(tiles for tiles in (1, 2, 4) if x.shape[0] <= 8 * tiles)
    _launch(token_tiles, x, x.data_ptr(), row_stride("x", x), weight, bias, kind, out, (0, 0, 0), 0.0)


def fits_norm(x: Tensor | None, residual: Tensor, norm: Tensor, weight: Tensor) -> bool:
    """Whether `norm_linear` serves these on their GPU: few tokens, contiguous, of one dtype."""
    tokens, inputs = residual.shape
    if tokens > _NORM_TOKENS or 2 * tokens * (inputs + 32) > _NORM_BYTES:
        return False
    if norm.dtype != weight.dtype or not is_aligned(norm.data_ptr()) or not residual.is_contiguous():
        return False
    return fits(residual, weight) and (x is None or fits(x, weight))


def norm_linear(
    residual: Tensor,
    x: Tensor | None,
    norm: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    kind: str | None,
    new_residual: Tensor | None,
    out: Tensor,
) -> None:
    """`skinny_linear` of the RMS norm of `residual` + `x`, into `out`, and that sum into `new_residual`."""
    if not fits_norm(x, residual, norm, weight):
        raise InvalidArgument(
            f"residual has dtype {residual.dtype} and shape {list(residual.shape)}; the kernel with a norm takes up to "
            f"{_NORM_TOKENS} tokens of {_NORM_BYTES} bytes together, all of them float16 or bfloat16, contiguous and "
            "aligned to 16 bytes"
        )
    x_at, x_stride = (0, 0) if x is None else (x.data_ptr(), row_stride("x", x))
    new_at = 0 if new_residual is None else new_residual.data_ptr()
    norm_at = norm.data_ptr(), residual.data_ptr(), new_at
    _launch(0, residual, x_at, x_stride, weight, bias, kind, out, norm_at, eps)


def _launch(
    token_tiles: int,
    first: Tensor,
    x_at: int,
    x_stride: int,
    weight: Tensor,
    bias: Tensor | None,
    kind: str | None,
    out: Tensor,
    norm_at: tuple[int, int, int],
    eps: float,
) -> None:
    gpu = backends[first.device].properties(first.device)
    tokens, inputs = first.shape
    gated, results = kind is not None, out.shape[1]
    tile, warps = tile_of(results, gated, gpu.num_multiprocessors), warps_of(weight.shape[0], inputs)
    kernels = _KERNELS if gpu.capability >= _AMPERE else _TURING_KERNELS
    blocks = -(-results // (8 if gated else tile))
    kernels[first.dtype, tile, token_tiles, warps].launch(
        first.device, (blocks, 1, 1), x_at, weight.data_ptr(), 0 if bias is None else bias.data_ptr(), out.data_ptr(),
        *norm_at, x_stride, tokens, inputs, weight.shape[0], _NO_ACTIVATION if kind is None else KINDS[kind],
        out.dtype == torch.float32, eps,
    )  # fmt: skip
