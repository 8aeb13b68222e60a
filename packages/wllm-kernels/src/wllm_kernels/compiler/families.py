"""The kernel families: which files make one module of device code, with which macros, for which GPUs.

A family is the unit of compilation and of loading. Its source is the concatenation of PRELUDE and its own parts, in
this order; no file includes another.
"""

from __future__ import annotations

from dataclasses import dataclass

from wllm_kernels.compiler.prefill_shapes import PREFILL_SHAPES

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


FAMILIES = (
    Family("norm", ("elements.cuh", "norm.cu")),
    Family("activation", ("elements.cuh", "activation.cu")),
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
    Family("attention_prefill_plan", ("attention.cuh", "attention_prefill_plan.cu")),
    *(
        Family(shape.name, ("attention_prefill.cuh", "attention_prefill.cu"), shape.defines, shape.targets)
        for shape in PREFILL_SHAPES
    ),
)
