"""What an op can compute once per step instead of once per layer.

A plan is opaque: the implementation that runs the op makes it and reads it (today the reference; device code will put
other tensors into the same fields). It is valid for one step and every KV cache of the same shape.
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


@dataclass(frozen=True, slots=True)
class RopePlan:
    """Step data of `rope_kv_write`."""

    tensors: tuple[Tensor, ...]
