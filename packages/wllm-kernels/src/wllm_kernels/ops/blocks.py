"""Copies of whole KV blocks: within a cache, and to and from the memory of the host."""

from __future__ import annotations

import torch
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.checks import expect_contiguous, expect_device, expect_dtype, expect_shape


def copy_blocks(kv: Tensor, pairs: Tensor) -> None:
    """Copy whole blocks of `kv` [num_blocks, ..] in place; `pairs` int64 [P, 2] of (source, target).

    Targets differ from one another; a block that is both is read before it is written. Each block is contiguous.
    """
    _check_pairs(kv, pairs)
    dispatch.copy_blocks(kv, pairs)


def swap_blocks(kv: Tensor, host: Tensor, pairs: Tensor, *, to_host: bool) -> None:
    """Copy whole blocks from `kv` [num_blocks, ..] to `host` [num_host_blocks, ..] on the CPU, or back.

    `pairs` int64 [P, 2] of (block of `kv`, block of `host`) for both directions, on the device of `kv`. On CUDA the GPU
    copies by itself, in the order of its stream: `host` is pinned, and ready when the stream has got there.
    """
    _check_pairs(kv, pairs)
    expect_shape("host", host, None, *kv.shape[1:])
    expect_dtype("host", host, kv.dtype)
    _expect_whole_blocks("host", host)
    if host.device.type != "cpu":
        raise InvalidArgument(f"host is on {host.device}; pass a CPU tensor")
    if kv.is_cuda and not host.is_pinned():
        raise InvalidArgument("host is ordinary memory, which a GPU cannot reach; allocate it with pin_memory=True")
    dispatch.swap_blocks(kv, host, pairs, to_host)


def _check_pairs(kv: Tensor, pairs: Tensor) -> None:
    expect_shape("pairs", pairs, None, 2)
    expect_dtype("pairs", pairs, torch.int64)
    expect_device("pairs", pairs, kv)
    expect_contiguous("pairs", pairs)
    _expect_whole_blocks("kv", kv)


def _expect_whole_blocks(name: str, tensor: Tensor) -> None:
    if not tensor.shape[0]:
        return
    block = tensor[0]
    if not block.is_contiguous() or (tensor.shape[0] > 1 and tensor.stride(0) < block.numel()):
        raise InvalidArgument(
            f"{name} has strides {tensor.stride()}; pass a tensor whose blocks are contiguous and share no memory"
        )
