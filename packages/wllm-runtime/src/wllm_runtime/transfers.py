"""Copies between host and device that no thread waits for.

On CUDA they go through pinned memory in the order of the stream: what is uploaded is there for every later launch, and
what is downloaded is complete once an event behind it has been waited for. On a CPU they are plain copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def host_tensor(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` in memory of the host that `device` can copy from by itself."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")


def upload(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` on `device`."""
    # torch's allocator of pinned memory gives the source to no one else before the stream has copied it.
    return host_tensor(values, dtype, device).to(device, non_blocking=True)


def download(tensor: Tensor) -> Tensor:
    """A copy of `tensor` on the host, to be read once the stream has got there."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)
