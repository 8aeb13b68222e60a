"""What an op can compute once per step instead of once per layer.

A plan is opaque: the implementation that runs the op makes it and reads it. It is valid for one step and every KV cache
of the same shape. Tensors that it was made for are known to fit, and are not checked again in each layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Step data of `paged_attention`; `workspace_elements` is the size of the workspace that it can reuse.

    On a GPU it also holds counters that a launch leaves as it finds them: use it in one stream at a time.
    """

    causal: bool
    window: int
    num_heads: int
    tensors: tuple[Tensor, ...]
    sizes: tuple[int, ...]
    workspace_elements: int
    made_for: tuple[Tensor, Tensor, Tensor]  # block_table, seq_lens, cu_q


@dataclass(frozen=True, slots=True)
class RopePlan:
    """Step data of `rope_kv_write`."""

    tensors: tuple[Tensor, ...]
    made_for: tuple[Tensor, Tensor, Tensor]  # positions, cos_sin, cells
