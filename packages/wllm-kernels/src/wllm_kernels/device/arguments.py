"""What launch code asks of tensors: a kernel for the dtype, rows at even distances, 16-byte alignment."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from wllm_kernels.device.kernel import Kernel
from wllm_kernels.errors import InvalidArgument

# The dtypes of models, and how the names of kernels end.
FLOAT_SUFFIXES = ((torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16"))


def kernel_for(kernels: Mapping[torch.dtype, Kernel], name: str, tensor: Tensor) -> Kernel:
    """The kernel for the dtype of `tensor`, which is called `name`; raises `InvalidArgument` if there is none."""
    kernel = kernels.get(tensor.dtype)
    if kernel is None:
        raise InvalidArgument(f"{name} has dtype {tensor.dtype}; device code takes {', '.join(map(str, kernels))}")
    return kernel


def row_stride(name: str, tensor: Tensor) -> int:
    """Elements between the rows of `tensor`, seen as [rows, size]; raises `InvalidArgument` if they are uneven."""
    size = tensor.shape[-1]
    if tensor.is_contiguous():
        return size
    try:
        rows = tensor.view(-1, size)
    except RuntimeError:
        rows = None
    if rows is None or (size > 1 and rows.stride(1) != 1):
        raise InvalidArgument(f"{name} has strides {tensor.stride()}; pass a tensor of dense rows at even distances")
    return rows.stride(0)


def is_aligned(*addresses: int) -> bool:
    """Whether all addresses, distances in bytes, or unions of such (`a | b`: quicker) are multiples of 16."""
    combined = 0
    for address in addresses:
        combined |= address
    return combined % 16 == 0
