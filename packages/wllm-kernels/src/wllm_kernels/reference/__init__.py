"""Plain-torch twin of every op, with the op's schema: the truth for tests, and the CPU path of the product.

Runs on any device. Results go into the arguments that the schema marks as mutated; nothing here checks arguments, the
public functions of `wllm_kernels.ops` do.
"""

from __future__ import annotations

from wllm_kernels.reference.activation import act_mul
from wllm_kernels.reference.attention import paged_attention
from wllm_kernels.reference.blocks import copy_blocks, swap_blocks
from wllm_kernels.reference.linear import skinny_linear
from wllm_kernels.reference.logprobs import logprobs
from wllm_kernels.reference.norm import rms_norm
from wllm_kernels.reference.rope import rope_kv_write
from wllm_kernels.reference.sampling import sample
from wllm_kernels.reference.step import advance_step, append_blocks, prepare_step

__all__ = [
    "act_mul",
    "advance_step",
    "append_blocks",
    "copy_blocks",
    "logprobs",
    "paged_attention",
    "prepare_step",
    "rms_norm",
    "rope_kv_write",
    "sample",
    "skinny_linear",
    "swap_blocks",
]
