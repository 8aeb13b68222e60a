"""Argument checks of the public ops: shapes and dtypes, once, before anything is launched; values are never read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wllm_kernels.errors import InvalidArgument


def expect_shape(name: str, tensor: Tensor, *shape: int | None) -> None:
    """Raise unless `tensor` has this shape; None stands for any size."""
    actual = tensor.shape
    if actual == shape:
        return
    if len(actual) == len(shape):
        for want, have in zip(shape, actual):  # three times as fast as any() over a generator
            if want != have and want is not None:
                break
        else:
            return
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    raise InvalidArgument(f"{name} has shape {list(actual)}; pass a tensor of shape [{wanted}]")


def expect_dtype(name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Raise unless `tensor` has one of the dtypes."""
    if tensor.dtype not in dtypes:
        raise InvalidArgument(f"{name} has dtype {tensor.dtype}; pass {' or '.join(map(str, dtypes))}")


def expect_device(name: str, tensor: Tensor, first: Tensor) -> None:
    """Raise unless `tensor` is on the device of `first`, the op's first argument."""
    if tensor.device != first.device:
        raise InvalidArgument(f"{name} is on {tensor.device} and the first argument on {first.device}; pass one device")


def are_same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether these are the same three objects: quicker than any look at them."""
    return tensors[0] is others[0] and tensors[1] is others[1] and tensors[2] is others[2]


def expect_workspace(workspace: Tensor, num_bytes: int, first: Tensor) -> None:
    """Raise unless `workspace` is a flat uint8 tensor of `num_bytes` or more on the device of `first`."""
    expect_shape("workspace", workspace, None)
    expect_dtype("workspace", workspace, torch.uint8)
    expect_device("workspace", workspace, first)
    expect_contiguous("workspace", workspace)
    if workspace.numel() < num_bytes:
        raise InvalidArgument(f"workspace has {workspace.numel()} bytes; this call needs {num_bytes}")


def expect_contiguous(name: str, tensor: Tensor) -> None:
    """Raise unless `tensor` is contiguous."""
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{name} has strides {tensor.stride()}; pass a contiguous tensor")


def result_tensor(out: Tensor | None, first: Tensor, *shape: int) -> Tensor:
    """`out`, or a new tensor where it is None: contiguous, of this shape, with the dtype and device of `first`."""
    if out is None:
        return first.new_empty(shape)
    expect_shape("out", out, *shape)
    expect_dtype("out", out, first.dtype)
    expect_device("out", out, first)
    expect_contiguous("out", out)
    return out


def result_like(out: Tensor | None, first: Tensor) -> Tensor:
    """`out`, or a new tensor where it is None: contiguous, with the shape, dtype and device of `first`."""
    if out is None and first.is_contiguous():
        return torch.empty_like(first)  # half the time of `new_empty`
    return result_tensor(out, first, *first.shape)


def expect_dense_rows(name: str, tensor: Tensor) -> None:
    """Raise unless the last dimension of `tensor` has stride 1."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise InvalidArgument(f"{name} has strides {tensor.stride()}; its last dimension must have stride 1")


def expect_logits(logits: Tensor) -> tuple[int, int]:
    """(rows, vocab_size) of logits; there is a vocabulary."""
    expect_shape("logits", logits, None, None)
    rows, vocab_size = logits.shape
    if not vocab_size:
        raise InvalidArgument(f"logits has shape {list(logits.shape)}; pass a vocabulary of at least one token")
    return rows, vocab_size


def expect_kv(kv: Tensor, kv_scale: Tensor | None) -> tuple[int, int, int]:
    """(num_kv_heads, block_size, head_dim) of a layer's KV cache; an int8 cache needs its scales, others take none."""
    shape = kv.shape
    if len(shape) != 5 or shape[1] != 2 or 0 in shape[2:]:
        raise InvalidArgument(
            f"kv has shape {list(shape)}; pass a tensor of shape [num_blocks, 2, num_kv_heads, block_size, head_dim]"
        )
    if kv.stride(4) != 1:
        raise InvalidArgument(f"kv has strides {kv.stride()}; its last dimension must have stride 1")
    if (kv.dtype == torch.int8) != (kv_scale is not None):
        given = "none" if kv_scale is None else str(kv_scale.dtype)
        raise InvalidArgument(
            f"kv has dtype {kv.dtype} and kv_scale is {given}; an int8 cache, and only that, has scales"
        )
    if kv_scale is not None:
        expect_shape("kv_scale", kv_scale, *shape[:4])
        expect_dtype("kv_scale", kv_scale, torch.float16)
        expect_contiguous("kv_scale", kv_scale)
        expect_device("kv_scale", kv_scale, kv)
    return shape[2], shape[3], shape[4]
