"""The inputs of one forward pass, an argument from the runner down to every layer: there is no global context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from wllm_kernels import AttentionPlan, RopePlan


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Flat tokens of all rows of a step, and where their keys and values live.

    `input_ids`, `rope_positions` and `cells` are int64 [tokens]: token ids, rows of `cos_sin` ([positions, head_dim]),
    and flat KV cells (block id * block size + offset). `block_table` is int32 [rows, blocks], `seq_lens` int32 [rows]
    (tokens in the cache with this step's), `cu_q` int32 [rows + 1]. `kv` holds one tensor a layer, `kv_scales` the
    scales of each if the cache is int8. The plans are what the layers share; those of attention by window size.
    """

    input_ids: torch.Tensor
    rope_positions: torch.Tensor
    cos_sin: torch.Tensor
    cells: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    cu_q: torch.Tensor
    kv: Sequence[torch.Tensor]
    kv_scales: Sequence[torch.Tensor | None]
    rope_plan: RopePlan
    attention_plans: Mapping[int, AttentionPlan]
