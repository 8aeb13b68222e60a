"""The public functions: each checks its arguments once, allocates what is missing and calls its torch op."""

from __future__ import annotations

from wllm_kernels.ops.activation import Activation, act_mul
from wllm_kernels.ops.attention import attention_plan, paged_attention
from wllm_kernels.ops.blocks import copy_blocks, swap_blocks
from wllm_kernels.ops.linear import PackedLinear, linear, linear_act, pack_linear
from wllm_kernels.ops.logprobs import Logprobs, logprobs, logprobs_workspace_bytes
from wllm_kernels.ops.norm import rms_norm
from wllm_kernels.ops.rope import rope_kv_write, rope_plan
from wllm_kernels.ops.sampling import Draw, LogitBias, Penalties, sample, sample_workspace_bytes
from wllm_kernels.ops.step import StepInputs, advance_step, append_blocks, prepare_step, step_inputs

__all__ = [
    "Activation",
    "Draw",
    "LogitBias",
    "Logprobs",
    "PackedLinear",
    "Penalties",
    "StepInputs",
    "act_mul",
    "advance_step",
    "append_blocks",
    "attention_plan",
    "copy_blocks",
    "linear",
    "linear_act",
    "logprobs",
    "logprobs_workspace_bytes",
    "pack_linear",
    "paged_attention",
    "prepare_step",
    "rms_norm",
    "rope_kv_write",
    "rope_plan",
    "sample",
    "sample_workspace_bytes",
    "step_inputs",
    "swap_blocks",
]
