"""Linear layers in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from wllm_kernels.reference.activation import act_mul


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None, kind: str | None, out: Tensor) -> None:
    """`x` times the weight plus the bias, summed in float32, into `out`; with `kind` what `act_mul` makes of it."""
    result = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    if kind is not None:
        result = result.to(x.dtype)
        gated = result.new_empty(out.shape)
        act_mul(result, kind, gated)
        result = gated
    out.copy_(result)
