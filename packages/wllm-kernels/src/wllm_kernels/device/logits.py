"""What the kernels that read rows of logits share: element types, a row's slices, and the parts of a workspace."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from wllm_kernels.errors import InvalidArgument

THREADS = 512  # LOGITS_THREADS of logits.cuh
# Slices start at multiples of it: what a block reads at once (STRIDE of logits.cuh).
SLICE_STEP = 4096
# Longer batches are several launches, so that a workspace does not grow with them.
ROWS_PER_LAUNCH = 256

_ELEMENT_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def element_type(logits: Tensor) -> int:
    """The number of the dtype in logits.cuh; raises `InvalidArgument` for another one."""
    number = _ELEMENT_TYPES.get(logits.dtype)
    if number is None:
        raise InvalidArgument(
            f"logits has dtype {logits.dtype}; device code takes {', '.join(map(str, _ELEMENT_TYPES))}"
        )
    return number


def addresses(**tensors: Tensor | None) -> list[int]:
    """The address of each tensor, 0 for None; raises `InvalidArgument` for one that is not contiguous."""
    found = []
    for name, tensor in tensors.items():
        if tensor is None:
            found.append(0)
        elif tensor.is_contiguous():
            found.append(tensor.data_ptr())
        else:
            raise InvalidArgument(f"{name} has strides {tensor.stride()}; pass a contiguous tensor")
    return found


def workspace_address(workspace: Tensor | None, num_bytes: int, device: torch.device) -> tuple[Tensor, int]:
    """`workspace`, or a new one, and its address; raises `InvalidArgument` if it is too small or not aligned."""
    if workspace is None:
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    address = workspace.data_ptr()
    if workspace.numel() < num_bytes or not workspace.is_contiguous() or address % 16:
        raise InvalidArgument(
            f"workspace has {workspace.numel()} bytes at {address:#x}; pass {num_bytes} contiguous bytes at a multiple "
            "of 16"
        )
    return workspace, address


def part_offsets(*sizes: int) -> tuple[int, ...]:
    """Where parts of these sizes in bytes, all multiples of 8, lie one after the other, and the bytes of the whole."""
    *offsets, total = accumulate(sizes, initial=0)
    return *offsets, -(-total // 16) * 16
