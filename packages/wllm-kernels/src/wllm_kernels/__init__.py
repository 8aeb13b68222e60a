"""Paged attention and sampling operators of an inference engine, as torch ops in the namespace `wllm`.

Owns the ops, their plain-torch reference and the choice between implementations. Never owns state: caches, tables and
buffers belong to the caller. Needs torch only.
"""

from __future__ import annotations

from wllm_kernels.device.backend import Gpu
from wllm_kernels.device.kernel import launch_count
from wllm_kernels.errors import (
    CompilationFailed,
    DriverError,
    DriverTooOld,
    InvalidArgument,
    KernelError,
    NoCudaTorch,
    NoDeviceCode,
    NoDriver,
    NoKernel,
    StaleContainer,
    UnsupportedByGpu,
)
from wllm_kernels.gpu_check import check_gpu, has_time_limit
from wllm_kernels.implementations import Capabilities, capabilities, warmup
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
    append_blocks,
    attention_plan,
    copy_blocks,
    linear,
    linear_act,
    logprobs,
    logprobs_workspace_bytes,
    pack_linear,
    paged_attention,
    prepare_step,
    rms_norm,
    rope_kv_write,
    rope_plan,
    sample,
    sample_workspace_bytes,
    step_inputs,
    swap_blocks,
)
from wllm_kernels.plans import AttentionPlan, RopePlan

__all__ = [
    "Activation",
    "AttentionPlan",
    "Capabilities",
    "CompilationFailed",
    "Draw",
    "DriverError",
    "DriverTooOld",
    "Gpu",
    "InvalidArgument",
    "KernelError",
    "LogitBias",
    "Logprobs",
    "NoCudaTorch",
    "NoDeviceCode",
    "NoDriver",
    "NoKernel",
    "PackedLinear",
    "Penalties",
    "RopePlan",
    "StaleContainer",
    "StepInputs",
    "UnsupportedByGpu",
    "act_mul",
    "advance_step",
    "append_blocks",
    "attention_plan",
    "capabilities",
    "check_gpu",
    "copy_blocks",
    "has_time_limit",
    "launch_count",
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
    "warmup",
]
