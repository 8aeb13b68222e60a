"""The border between the ops and what runs them: every op's schema, and which implementation serves which device.

The only place that chooses: the plain-torch reference serves the CPU, device code serves CUDA, and `capabilities()`
says so. Each op is registered as
`torch.ops.wllm.<name>` when the package is imported; the functions in `wllm_kernels.ops` call it from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from wllm_kernels import reference
from wllm_kernels.device import norm as device_norm

Implementation = Literal["reference", "device"]
_DEVICE_TYPES = ("cpu", "cuda")

# Kept alive: torch forgets the ops of a library that is garbage-collected.
_LIBRARY: Any = torch.library.Library("wllm", "DEF")  # type: ignore[no-untyped-call]


class Op:
    """An op: what it mutates is marked in its schema, and it returns nothing; the function in front allocates."""

    def __init__(
        self,
        name: str,
        schema: str,
        reference_function: Callable[..., None],
        device_function: Callable[..., None] | None = None,
    ) -> None:
        self.name = name
        self.implementation_names: dict[str, Implementation] = {
            "cpu": "reference",
            "cuda": "reference" if device_function is None else "device",
        }
        self._functions = {"cpu": reference_function, "cuda": device_function or reference_function}
        _LIBRARY.define(f"{name}({schema}) -> ()")
        for device_type, function in self._functions.items():
            _LIBRARY.impl(name, function, device_type.upper())
        torch.library.register_fake(f"wllm::{name}", _no_result, lib=_LIBRARY)
        self._overload = getattr(torch.ops.wllm, name).default

    def __call__(self, first: torch.Tensor, *rest: object) -> None:
        """Run on the device of `first`."""
        function = self._functions.get(first.device.type)
        if function is None or torch.compiler.is_compiling():
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
)
rope_kv_write = Op(
    "rope_kv_write",
    "Tensor qkv, Tensor positions, Tensor cos_sin, Tensor(a!) kv, Tensor cells, int num_heads, int num_kv_heads, "
    "Tensor? q_norm, Tensor? k_norm, float eps, bool interleaved, Tensor(b!)? kv_scale, Tensor[] plan_tensors, "
    "Tensor(c!) out",
    reference.rope_kv_write,
)
rms_norm = Op(
    "rms_norm",
    "Tensor x, Tensor weight, float eps, Tensor(a!)? residual, float weight_offset, Tensor(b!) out",
    reference.rms_norm,
    device_norm.rms_norm,
)
act_mul = Op("act_mul", "Tensor x, str kind, Tensor(a!) out", reference.act_mul)
prepare_step = Op(
    "prepare_step",
    "Tensor rows, Tensor cu_q, Tensor token_table, Tensor block_tables, int block_size, Tensor(a!) input_ids, "
    "Tensor(b!) positions, Tensor(c!) cells, Tensor(d!) seq_lens, Tensor(e!) block_table",
    reference.prepare_step,
)
advance_step = Op(
    "advance_step", "Tensor rows, Tensor tokens, Tensor(a!) token_table, Tensor(b!) lengths", reference.advance_step
)
copy_blocks = Op("copy_blocks", "Tensor(a!) kv, Tensor pairs", reference.copy_blocks)
sample = Op(
    "sample",
    "Tensor logits, Tensor? temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? seeds, "
    "Tensor? positions, Tensor? bias_rows, Tensor? bias_ids, Tensor? bias_values, Tensor? bitmask, "
    "Tensor? penalty_rows, Tensor? penalty_slots, Tensor? repetition, Tensor? presence, Tensor? frequency, "
    "Tensor? output_counts, Tensor? prompt_seen, Tensor(a!) out",
    reference.sample,
)
logprobs = Op(
    "logprobs",
    "Tensor logits, Tensor token_ids, Tensor(a!) logprob, Tensor(b!) rank, Tensor(c!) top_ids, Tensor(d!) top_logprobs",
    reference.logprobs,
)

OPS = (
    paged_attention,
    rope_kv_write,
    rms_norm,
    act_mul,
    prepare_step,
    advance_step,
    copy_blocks,
    sample,
    logprobs,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What runs the ops in this process: by device type, then by op."""

    implementations: Mapping[str, Mapping[str, Implementation]]

    @property
    def has_device_code(self) -> bool:
        """Whether any op runs compiled device code."""
        return any(name != "reference" for ops in self.implementations.values() for name in ops.values())


def capabilities() -> Capabilities:
    """The implementation of each op on the CPU and, if torch sees a GPU, on CUDA."""
    devices = _DEVICE_TYPES if torch.cuda.is_available() else _DEVICE_TYPES[:1]
    return Capabilities({device: {op.name: op.implementation_names[device] for op in OPS} for device in devices})
