"""Paged attention and sampling operators of an inference engine, as torch ops in the namespace `wllm`.

Owns the ops, their plain-torch reference and the choice between implementations. Never owns state: caches, tables and
buffers belong to the caller. Needs torch only.
"""

from __future__ import annotations

from wllm_kernels.dispatch import Capabilities, capabilities
from wllm_kernels.errors import InvalidArgument, KernelError
from wllm_kernels.ops import (
    Activation,
    Draw,
    LogitBias,
    Logprobs,
    PackedLinear,
    Penalties,
    StepInputs,
    act_mul,
    advance_step,
    attention_plan,
    copy_blocks,
    linear,
    logprobs,
    pack_linear,
    paged_attention,
    prepare_step,
    rms_norm,
    rope_kv_write,
    rope_plan,
    sample,
    step_inputs,
)
from wllm_kernels.plans import AttentionPlan, RopePlan

__all__ = [
    "Activation",
    "AttentionPlan",
    "Capabilities",
    "Draw",
    "InvalidArgument",
    "KernelError",
    "LogitBias",
    "Logprobs",
    "PackedLinear",
    "Penalties",
    "RopePlan",
    "StepInputs",
    "act_mul",
    "advance_step",
    "attention_plan",
    "capabilities",
    "copy_blocks",
    "linear",
    "logprobs",
    "pack_linear",
    "paged_attention",
    "prepare_step",
    "rms_norm",
    "rope_kv_write",
    "rope_plan",
    "sample",
    "step_inputs",
]
