"""Gated activations in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def act_mul(x: Tensor, kind: str, out: Tensor) -> None:
    """act(first half of `x`) * second half, into `out`."""
    gate, up = x.chunk(2, -1)
    if kind == "silu":
        activated = F.silu(gate)
    else:
        activated = F.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none")
    torch.mul(activated, up, out=out)
