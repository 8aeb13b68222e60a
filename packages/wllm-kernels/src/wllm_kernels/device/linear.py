"""Launch of the linear layers for few tokens; `fits` says which calls they serve, `pays` which of those gain."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from wllm_kernels.device.activation import KINDS
from wllm_kernels.device.arguments import is_aligned, row_stride
from wllm_kernels.device.kernel import DeviceProperties, Kernel, backends
from wllm_kernels.errors import InvalidArgument

MAX_TOKENS = 32
_AMPERE = 80
_SUFFIXES = {torch.float16: "f16", torch.bfloat16: "bf16"}
_NO_ACTIVATION = -1
_WARPS = (4, 8)
_WIDE, _FEW_INPUTS, _SMALL_WEIGHT = 4096, 2048, 2_000_000  # outputs, inputs, elements

# As in linear.cuh: outputs of a tile, and bytes of a warp's ring.
_TILE = 16
_SHORT_RING, _TURING_RING, _LONG_RING = 8192, 4096, 16384
_RESERVED_BYTES = 1024  # of a multiprocessor's shared memory, for each of its blocks


def _shared_bytes(token_tiles: int, warps: int, ring_bytes: int) -> int:
    return warps * (ring_bytes + 8 * token_tiles * (_TILE + 4) * 4)


def _kernels(ring: str, ring_bytes: int, *dtypes: torch.dtype) -> dict[tuple[torch.dtype, int, int], Kernel]:
    """By dtype, tiles of eight tokens, and warps."""
    kernels = {}
    for dtype, token_tiles, warps in product(dtypes, (1, 2, 4), _WARPS):
        name = f"linear_{ring}_{_SUFFIXES[dtype]}_{8 * token_tiles}"
        shared = _shared_bytes(token_tiles, warps, ring_bytes)
        kernels[dtype, token_tiles, warps] = Kernel("linear", name, "4Qq5i4x", 32 * warps, shared, overlaps=True)
    return kernels


_KERNELS = _kernels("short", _SHORT_RING, torch.float16, torch.bfloat16)
_LONG_KERNELS = _kernels("long", _LONG_RING, torch.float16, torch.bfloat16)
_TURING_KERNELS = _kernels("short", _TURING_RING, torch.float16)


def warps_of(outputs: int, inputs: int) -> int:
    """Warps of a block: four for a layer that is wide and not deep, whose many blocks then are small.

    They share the inputs, so a sum's rounding depends on their number. Nothing but the shape of the layer may enter
    here: a token's result shall not change with its neighbours, its activation or the GPU.
    """
    return _WARPS[0] if outputs >= _WIDE and outputs > inputs else _WARPS[1]


def has_long_rings(blocks: int, token_tiles: int, warps: int, gpu: DeviceProperties) -> bool:
    """Whether all blocks of a launch are on the GPU at once even with long rings: nobody else wants the memory then.

    H200, us of one token with short and long rings: 4864 x 896 5.18 and 4.38, 896 x 896 1.63 and 1.47, 4096 x 6144
    16.76 and 13.05; but where there are more blocks than that, 896 x 9728 5.00 and 6.13.
    """
    each = _shared_bytes(token_tiles, warps, _LONG_RING) + _RESERVED_BYTES
    return blocks <= gpu.num_multiprocessors * ((gpu.max_shared_bytes + _RESERVED_BYTES) // each)


def pays(tokens: int, outputs: int, inputs: int) -> bool:
    """Whether our kernel is faster than the library's product for so many tokens.

    Every block reads all of x: for more than 8 tokens as much as its part of the weight or more, from the L2 where the
    inputs are many. H200, us of the library and ours, of 16 tokens: 4096 x 6144 15.64 and 17.37, 4096 x 128256 252.2
    and 257.0, 4096 x 28672 61.8 and 61.5 alone, but with the whole layer of Llama-3.1-8B around it the slower one too;
    on the other side 4096 x 4096 12.85 and 11.09, 14336 x 4096 31.93 and 30.16, all of a layer of Qwen2.5-0.5B 27.10
    and 22.14. Of 32 tokens: 896 x 896 4.22 and 3.08, but 4864 x 896 7.48 and 9.33.
    """
    if tokens > 16:
        return tokens <= MAX_TOKENS and outputs * inputs <= _SMALL_WEIGHT
    return tokens <= 8 or outputs <= inputs or inputs <= _FEW_INPUTS


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
    gpu = backends[x.device].properties(x.device)
    tokens, inputs = x.shape
    outputs = weight.shape[0]
    token_tiles, warps = next(tiles for tiles in (1, 2, 4) if tokens <= 8 * tiles), warps_of(outputs, inputs)
    # With an activation a tile has two outputs of each result.
    blocks = -(-outputs // _TILE)
    kernels = _TURING_KERNELS
    if gpu.capability >= _AMPERE:
        kernels = _LONG_KERNELS if has_long_rings(blocks, token_tiles, warps, gpu) else _KERNELS
    kernels[x.dtype, token_tiles, warps].launch(
        x.device, (blocks, 1, 1), x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(),
        out.data_ptr(), row_stride("x", x), tokens, inputs, outputs, _NO_ACTIVATION if kind is None else KINDS[kind],
        out.dtype == torch.float32,
    )  # fmt: skip
