"""The kernel families: which files make one module of device code, with which macros, for which GPUs.

A family is the unit of compilation and of loading. Its source is the concatenation of PRELUDE and its own parts, in
this order; no file includes another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from wllm_kernels.compiler.prefill_shapes import PREFILL_SHAPES
from wllm_kernels.errors import InvalidArgument

PRELUDE = ("types.cuh", "primitives.cuh", "numeric.cuh")
# Compute capability times ten. 89 runs the code of 86, except where a family uses FP8.
TARGETS = (75, 80, 86, 89, 90, 100, 120)
FP8_TARGETS = (89, 90, 100, 120)


@dataclass(frozen=True, slots=True)
class Family:
    """One module: `parts` are files of csrc/ behind the prelude; `targets` those that get machine code in the wheel."""

    name: str
    parts: tuple[str, ...]
    defines: tuple[tuple[str, str], ...] = ()
    targets: tuple[int, ...] = (75, 80, 86, 90, 100, 120)


_DECODE_PARTS = (
    "attention.cuh", "attention_work.cuh", "attention_decode_slice.cuh", "attention_decode_merge.cuh",
    "attention_decode_lines.cuh", "attention_decode.cu",
)  # fmt: skip


def _decode(head_dim: int, warps: int, stages: int, stages_8bit: int, blocks: int) -> tuple[Family, ...]:
    def family(name: str, stages: int, stages_8bit: int, e4m3: int, targets: tuple[int, ...]) -> Family:
        macros = {"HEAD_DIM": head_dim, "WARPS": warps, "STAGES": stages, "STAGES_8BIT": stages_8bit, "BLOCKS": blocks}
        defines = tuple((f"DECODE_{macro}", str(value)) for macro, value in (macros | {"E4M3": e4m3}).items())
        return Family(f"attention_decode_{name}d{head_dim}", _DECODE_PARTS, defines, targets)

    return (
        family("", stages, stages_8bit, 0, (80, 86, 90, 100, 120)),
        family("e4m3_", stages, stages_8bit, 1, FP8_TARGETS),
        # Turing has 64 KB of shared memory.
        family("turing_", min(stages, 2), min(stages_8bit, 3), 0, (75,)),
    )


FAMILIES = (
    Family("norm", ("elements.cuh", "norm.cu")),
    Family("activation", ("elements.cuh", "activation.cuh", "activation.cu")),
    Family("linear", ("elements.cuh", "activation.cuh", "linear.cuh", "linear.cu")),
    Family("step", ("step.cu",)),
    Family("blocks", ("blocks.cu",)),
    Family("rope", ("elements.cuh", "rope.cu")),
    Family("rope_e4m3", ("elements.cuh", "rope.cu"), (("E4M3_CACHE", "1"),), targets=FP8_TARGETS),
    Family(
        "sampling",
        ("logits.cuh", "intervals.cuh", "noise.cuh", "sampling.cuh", "sampling_prepare.cu", "sampling.cu"),
    ),
    Family("logprobs", ("logits.cuh", "intervals.cuh", "logprobs.cu")),
    Family("attention_plain", ("attention_plain.cu",)),
    Family("attention_plain_e4m3", ("attention_plain.cu",), (("E4M3_CACHE", "1"),), targets=FP8_TARGETS),
    Family("attention_plan", ("attention.cuh", "attention_work.cuh", "attention_plan.cu")),
    *_decode(64, warps=8, stages=3, stages_8bit=4, blocks=2),
    *_decode(80, warps=4, stages=2, stages_8bit=4, blocks=3),
    *_decode(96, warps=4, stages=3, stages_8bit=4, blocks=2),
    *_decode(128, warps=4, stages=3, stages_8bit=4, blocks=2),
    *_decode(256, warps=2, stages=2, stages_8bit=3, blocks=3),
    Family("attention_prefill_plan", ("attention.cuh", "attention_prefill_plan.cu")),
    *(
        Family(shape.name, ("attention_prefill.cuh", "attention_prefill.cu"), shape.defines, shape.targets)
        for shape in PREFILL_SHAPES
    ),
)


def best_target(capability: int, targets: Iterable[int]) -> int | None:
    """The newest machine code that a GPU runs: of its own major version, and of its minor or an older one."""
    fitting = [target for target in targets if target // 10 == capability // 10 and target <= capability]
    return max(fitting, default=None)


@cache
def runs_on(targets: tuple[int, ...], capability: int) -> bool:
    """Whether a family with these targets is for a GPU: it has code for it, or the GPU is newer than all code."""
    if best_target(capability, TARGETS) is None:
        return capability >= min(targets)
    return best_target(capability, targets) is not None


def number_of(target: str) -> int:
    """86 for "sm_86" or "compute_86"; raises `InvalidArgument` for what is no target."""
    found = re.fullmatch(r"(?:sm|compute)_(\d{2,3})", target)
    if found is None:
        raise InvalidArgument(f"{target!r} is no target; use one like compute_80 or sm_86")
    return int(found[1])
