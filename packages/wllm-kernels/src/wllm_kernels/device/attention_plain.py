"""Launch of the attention kernels without tensor cores: float32, and head sizes that no other kernel has."""

from __future__ import annotations

import torch
from torch import Tensor

from wllm_kernels.device.arguments import FLOAT_SUFFIXES
from wllm_kernels.device.kernel import Kernel
from wllm_kernels.errors import InvalidArgument

# PLAIN_WARPS, HEADS and the size of WarpResult for each warp, of attention_plain.cu.
_WARPS, _HEADS = 4, 4
_SHARED_BYTES = _WARPS * _HEADS * 4 * (2 + 256)
_MAX_HEAD_DIM = 256


def _kernel(family: str, suffix: str) -> Kernel:
    return Kernel(family, f"attention_plain_{suffix}", "7Q9q8i2f", _WARPS * 32, _SHARED_BYTES, overlaps=True)


# By the dtypes of queries and cache.
_KERNELS = {
    key: kernel
    for dtype, suffix in FLOAT_SUFFIXES
    for key, kernel in (
        ((dtype, dtype), _kernel("attention_plain", suffix)),
        ((dtype, torch.int8), _kernel("attention_plain", f"{suffix}_i8")),
        ((dtype, torch.float8_e4m3fn), _kernel("attention_plain_e4m3", f"{suffix}_e4m3")),
    )
}


def launch(
    q: Tensor,
    kv: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    cu_q: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    kv_scale: Tensor | None,
    out: Tensor,
) -> None:
    """Attention of `q` over the cached tokens of its rows into `out`; tokens of no row and padding become 0."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = kv.shape[2:4]
    kernel = _KERNELS.get((q.dtype, kv.dtype))
    if kernel is None or out.dtype != q.dtype:
        raise InvalidArgument(
            f"q is {q.dtype}, kv {kv.dtype}, out {out.dtype}; pass q and out of one of float32, float16 and bfloat16, "
            "and kv of the same, int8 or float8_e4m3fn"
        )
    if head_dim > _MAX_HEAD_DIM:
        raise InvalidArgument(f"head_dim is {head_dim}; device code takes up to {_MAX_HEAD_DIM}")
    for name, tensor in (("q", q), ("kv", kv), ("block_table", block_table), ("out", out)):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise InvalidArgument(f"{name} has strides {tensor.stride()}; pass a tensor whose last dimension is dense")
    if kv_scale is not None and (kv_scale.dtype != torch.float16 or not kv_scale.is_contiguous()):
        raise InvalidArgument(
            f"kv_scale is {kv_scale.dtype} with strides {kv_scale.stride()}; pass a contiguous float16 tensor"
        )
    if not q.numel():
        return
    group = num_heads // num_kv_heads
    kernel.launch(
        q.device, (num_tokens, num_kv_heads, -(-group // _HEADS)), q.data_ptr(), kv.data_ptr(),
        0 if kv_scale is None else kv_scale.data_ptr(), block_table.data_ptr(), seq_lens.data_ptr(), cu_q.data_ptr(),
        out.data_ptr(), *q.stride()[:2], *out.stride()[:2], *kv.stride()[:4], block_table.stride(0), seq_lens.shape[0],
        num_kv_heads, group, head_dim, block_size, block_table.shape[1] * block_size, causal, window, scale, softcap,
    )  # fmt: skip
