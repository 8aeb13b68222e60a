"""The border between the ops and what runs them: every op's schema, and which implementation serves which device.

The only place that chooses. Today the plain-torch reference serves every device, because no device code exists yet;
compiled kernels will replace it here for CUDA, op by op, and `capabilities()` will say so. Imported once by the
package; the ops then live in `torch.ops.wllm`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from wllm_kernels import reference

Implementation = Literal["reference"]

# Ops mutate what is marked and return nothing: the functions in front allocate. torch's opcheck accepts only that.
_OPS: Mapping[str, tuple[str, Callable[..., None]]] = {
    "paged_attention": (
        "(Tensor q, Tensor kv, Tensor block_table, Tensor seq_lens, Tensor cu_q, float scale, bool causal, int window, "
        "float softcap, Tensor? kv_scale, Tensor[] plan_tensors, int[] plan_sizes, Tensor(a!)? workspace, "
        "Tensor(b!) out) -> ()",
        reference.paged_attention,
    ),
    "rope_kv_write": (
        "(Tensor qkv, Tensor positions, Tensor cos_sin, Tensor(a!) kv, Tensor cells, int num_heads, int num_kv_heads, "
        "Tensor? q_norm, Tensor? k_norm, float eps, bool interleaved, Tensor(b!)? kv_scale, Tensor[] plan_tensors, "
        "Tensor(c!) q_out) -> ()",
        reference.rope_kv_write,
    ),
    "rms_norm": (
        "(Tensor x, Tensor weight, float eps, Tensor(a!)? residual, float weight_offset, Tensor(b!) out) -> ()",
        reference.rms_norm,
    ),
    "act_mul": ("(Tensor x, str kind, Tensor(a!) out) -> ()", reference.act_mul),
    "prepare_step": (
        "(Tensor rows, Tensor cu_q, Tensor token_table, Tensor block_tables, int block_size, Tensor(a!) input_ids, "
        "Tensor(b!) positions, Tensor(c!) cells, Tensor(d!) seq_lens, Tensor(e!) block_table) -> ()",
        reference.prepare_step,
    ),
    "advance_step": (
        "(Tensor rows, Tensor tokens, Tensor(a!) token_table, Tensor(b!) lengths) -> ()",
        reference.advance_step,
    ),
    "copy_blocks": ("(Tensor(a!) kv, Tensor pairs) -> ()", reference.copy_blocks),
    "sample": (
        "(Tensor logits, Tensor? temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor? seeds, "
        "Tensor? positions, Tensor? bias_rows, Tensor? bias_ids, Tensor? bias_values, Tensor? bitmask, "
        "Tensor? penalty_rows, Tensor? penalty_slots, Tensor? repetition, Tensor? presence, Tensor? frequency, "
        "Tensor? output_counts, Tensor? prompt_seen, Tensor(a!) out) -> ()",
        reference.sample,
    ),
    "logprobs": (
        "(Tensor logits, Tensor token_ids, Tensor(a!) logprob, Tensor(b!) rank, Tensor(c!) top_ids, "
        "Tensor(d!) top_logprobs) -> ()",
        reference.logprobs,
    ),
}


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
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return Capabilities({device: dict.fromkeys(_OPS, "reference") for device in devices})


def _fake(*_: object) -> None:
    """Every op returns nothing and the function in front allocates: there is no shape to infer."""


def _register() -> object:
    library: Any = torch.library.Library("wllm", "DEF")  # type: ignore[no-untyped-call]
    for name, (schema, function) in _OPS.items():
        library.define(name + schema)
        library.impl(name, function, "CPU")
        library.impl(name, function, "CUDA")
        torch.library.register_fake(f"wllm::{name}", _fake, lib=library)
    return library


# Kept alive: torch forgets the ops of a library that is garbage-collected.
_LIBRARY = _register()
