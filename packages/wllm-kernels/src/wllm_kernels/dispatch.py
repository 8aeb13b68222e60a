"""The border between the ops and what runs them: every op's schema, and which implementation serves which device.

The only place that chooses: the plain-torch reference serves the CPU, device code serves CUDA, and `capabilities()`
says so. Device code that cannot run raises; nothing falls back to the reference by itself. WLLM_KERNELS=reference
chooses the reference for CUDA too, for debugging. Each op is registered as `torch.ops.wllm.<name>` when the package is
imported; the functions in `wllm_kernels.ops` call it from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.compiler import is_compiling

from wllm_kernels import reference
from wllm_kernels.device import activation as device_activation
from wllm_kernels.device import attention as device_attention
from wllm_kernels.device import blocks as device_blocks
from wllm_kernels.device import linear as device_linear
from wllm_kernels.device import logprobs as device_logprobs
from wllm_kernels.device import norm as device_norm
from wllm_kernels.device import rope as device_rope
from wllm_kernels.device import sampling as device_sampling
from wllm_kernels.device import step as device_step
from wllm_kernels.errors import InvalidArgument

Implementation = Literal["reference", "device"]


def chosen_implementation(variable: str) -> Implementation:
    """What CUDA runs for this value of WLLM_KERNELS; raises `InvalidArgument`."""
    if variable not in ("", "reference"):
        raise InvalidArgument(f"WLLM_KERNELS={variable!r} is unknown; set it to reference, or unset it")
    return "reference" if variable else "device"


DEVICE_TYPES = ("cpu", "cuda")
_ON_CUDA = chosen_implementation(os.environ.get("WLLM_KERNELS", ""))
REFERENCE_FORCED = _ON_CUDA == "reference"

# Kept alive: torch forgets the ops of a library that is garbage-collected.
_LIBRARY: Any = torch.library.Library("wllm", "DEF")  # type: ignore[no-untyped-call]


class Op:
    """An op: what it mutates is marked in its schema, and it returns nothing; the function in front allocates."""

    def __init__(
        self,
        name: str,
        schema: str,
        reference_function: Callable[..., None],
        device_function: Callable[..., None],
    ) -> None:
        self.name = name
        self.implementation_names: dict[str, Implementation] = {"cpu": "reference", "cuda": _ON_CUDA}
        on_cuda = device_function if _ON_CUDA == "device" else reference_function
        self._functions = {"cpu": reference_function, "cuda": on_cuda}
        _LIBRARY.define(f"{name}({schema}) -> ()")
        for device_type, function in self._functions.items():
            _LIBRARY.impl(name, function, device_type.upper())
        torch.library.register_fake(f"wllm::{name}", _no_result, lib=_LIBRARY)
        self._overload = getattr(torch.ops.wllm, name).default

    def __call__(self, first: torch.Tensor, *rest: object) -> None:
        """Run on the device of `first`."""
        # `is_cuda` is one look at the tensor, the name of its device five.
        function = self._functions.get("cuda" if first.is_cuda else first.device.type)
        if function is None or is_compiling():
            self._overload(first, *rest)
        else:
            # torch's dispatcher would find the same function, 4 to 10 us later, some 150 times a step.
            function(first, *rest)


def _no_result(*_: object) -> None:
    """The fake of every op: there is no shape to infer."""


paged_attention = Op(
    "paged_attention",
    "Tensor q, Tensor kv, Tensor block_table, Tensor seq_lens, Tensor cu_q, float scale, bool causal, int window, "
    "float softcap, Tensor? kv_scale, Tensor[] plan_tensors, int[] plan_sizes, Tensor(a!)? workspace, Tensor(b!) out",
    reference.paged_attention,
    device_attention.paged_attention,
)
rope_kv_write = Op(
    "rope_kv_write",
    "Tensor qkv, Tensor positions, Tensor cos_sin, Tensor(a!) kv, Tensor cells, int num_heads, int num_kv_heads, "
    "Tensor? q_norm, Tensor? k_norm, float eps, bool interleaved, Tensor(b!)? kv_scale, Tensor[] plan_tensors, "
    "Tensor(c!) out",
    reference.rope_kv_write,
    device_rope.rope_kv_write,
)
rms_norm = Op(
    "rms_norm",
    "Tensor x, Tensor weight, float eps, Tensor(a!)? residual, float weight_offset, Tensor(b!) out",
    reference.rms_norm,
    device_norm.rms_norm,
)
act_mul = Op("act_mul", "Tensor x, str kind, Tensor(a!) out", reference.act_mul, device_activation.act_mul)
skinny_linear = Op(
    "skinny_linear",
    "Tensor x, Tensor weight, Tensor? bias, str? kind, Tensor(a!) out",
    reference.skinny_linear,
    device_linear.skinny_linear,
)
prepare_step = Op(
    "prepare_step",
    "Tensor rows, Tensor cu_q, Tensor token_table, Tensor block_tables, int block_size, Tensor(a!) input_ids, "
    "Tensor(b!) positions, Tensor(c!) cells, Tensor(d!) seq_lens, Tensor(e!) block_table",
    reference.prepare_step,
    device_step.prepare_step,
)
append_blocks = Op(
    "append_blocks",
    "Tensor(a!) block_tables, Tensor entries",
    reference.append_blocks,
    device_step.append_blocks,
)
advance_step = Op(
    "advance_step",
    "Tensor rows, Tensor tokens, Tensor(a!) token_table, Tensor(b!) lengths, Tensor(c!)? results",
    reference.advance_step,
    device_step.advance_step,
)
copy_blocks = Op("copy_blocks", "Tensor(a!) kv, Tensor pairs", reference.copy_blocks, device_blocks.copy_blocks)
swap_blocks = Op(
    "swap_blocks",
    "Tensor(a!) kv, Tensor(b!) host, Tensor pairs, bool to_host",
    reference.swap_blocks,
    device_blocks.swap_blocks,
)
sample = Op(
    "sample",
    "Tensor logits, Tensor? temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? seeds, "
    "Tensor? positions, Tensor? bias_rows, Tensor? bias_ids, Tensor? bias_values, Tensor? bitmask, "
    "Tensor? penalty_rows, Tensor? penalty_slots, Tensor? repetition, Tensor? presence, Tensor? frequency, "
    "Tensor? output_counts, Tensor? prompt_seen, Tensor(a!)? workspace, Tensor(b!) out",
    reference.sample,
    device_sampling.sample,
)
logprobs = Op(
    "logprobs",
    "Tensor logits, Tensor token_ids, Tensor(a!)? workspace, Tensor(b!) logprob, Tensor(c!) rank, Tensor(d!) top_ids, "
    "Tensor(e!) top_logprobs",
    reference.logprobs,
    device_logprobs.logprobs,
)

OPS = (
    paged_attention,
    rope_kv_write,
    rms_norm,
    act_mul,
    skinny_linear,
    append_blocks,
    prepare_step,
    advance_step,
    copy_blocks,
    swap_blocks,
    sample,
    logprobs,
)
