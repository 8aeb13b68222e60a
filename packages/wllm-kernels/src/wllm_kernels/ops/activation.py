"""Gated activations."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.checks import result_tensor

Activation = Literal["silu", "gelu", "gelu_tanh"]


def act_mul(x: Tensor, kind: Activation, out: Tensor | None = None) -> Tensor:
    """act(x[:, :inter]) * x[:, inter:] for `x` [tokens, 2 * inter], into `out` [tokens, inter].

    On CUDA the rows of `x` are dense. Raises `InvalidArgument`.
    """
    if kind not in get_args(Activation):
        raise InvalidArgument(f"kind is {kind!r}; pass one of {', '.join(get_args(Activation))}")
    if x.dim() != 2 or x.shape[1] % 2:
        raise InvalidArgument(f"x has shape {list(x.shape)}; pass a tensor of shape [tokens, 2 * inter]")
    out = result_tensor(out, x, x.shape[0], x.shape[1] // 2)
    dispatch.act_mul(x, kind, out)
    return out
