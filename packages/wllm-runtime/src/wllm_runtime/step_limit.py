"""The longest step of a GPU that a display waits for (its driver ends what runs too long)."""

from __future__ import annotations

import torch

from wllm_kernels import has_time_limit
from wllm_runtime.settings import Settings

# Windows resets the GPU after 2 s in one kernel. A step has many kernels, so that this is on the safe side.
_DISPLAY_STEP_MS = 1000.0


def resolve_step_limit(device: torch.device, settings: Settings) -> float | None:
    """The milliseconds that a step with prefill may take; None for no limit."""
    if not has_time_limit(device):
        return None
    settings.add("max_step_ms", int(_DISPLAY_STEP_MS), "this GPU's driver ends kernels that run for too long")
    return _DISPLAY_STEP_MS
