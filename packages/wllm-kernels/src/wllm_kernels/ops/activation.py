"""Gated activations."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.errors import InvalidArgument

Activation = Literal["silu", "gelu", "gelu_tanh"]


def act_mul(x: Tensor, kind: Activation) -> Tensor:
    """act(x[:, :inter]) * x[:, inter:] for `x` [tokens, 2 * inter]."""
    if kind not in get_args(Activation):
        raise InvalidArgument(f"kind is {kind!r}; pass one of {', '.join(get_args(Activation))}")
    if x.dim() != 2 or x.shape[1] % 2:
        raise InvalidArgument(f"x has shape {list(x.shape)}; pass a tensor of shape [tokens, 2 * inter]")
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    dispatch.act_mul(x, kind, out)
    return out
