"""Linear layers with weights packed once for the hardware.

The layout of a packed weight belongs to this module: make one with `pack_linear`, use it with `linear` or `linear_act`.
Quantised formats will join the same border. On a CPU float32 weights go into oneDNN's blocked layout: for the few rows
of a decode step that is two to three times faster than the library's plain matrix product, which packs again on each
call. On CUDA our own kernel serves few tokens, where the library's is far from the speed of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from wllm_kernels import dispatch
from wllm_kernels.device import linear as device_linear
from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.activation import Activation, act_mul
from wllm_kernels.ops.checks import expect_contiguous, expect_device, expect_dtype, expect_shape


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The weight of a linear layer in the layout that `format` names; `weight` is not to be read by others."""

    format: Literal["dense", "onednn"]
    in_features: int
    out_features: int
    weight: Tensor
    bias: Tensor | None


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """Pack `weight` [out_features, in_features] and `bias` [out_features]; a packed copy does not share `weight`.

    On CUDA it shares them, and waits until the current stream has written them: kernels read weights before earlier
    work in the stream has ended. Whoever writes them later waits for the device, too, before the next call.
    """
    expect_shape("weight", weight, None, None)
    out_features, in_features = weight.shape
    if bias is not None:
        expect_shape("bias", bias, out_features)
        expect_dtype("bias", bias, weight.dtype)
        expect_device("bias", bias, weight)
        bias = bias.detach()
    weight = weight.detach()
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and _has_onednn():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return PackedLinear("onednn", in_features, out_features, packed, bias)
    if weight.is_cuda:
        torch.cuda.current_stream(weight.device).synchronize()
    return PackedLinear("dense", in_features, out_features, weight, bias)


def linear(
    x: Tensor, packed: PackedLinear, *, out_dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """`x` [.., in_features] times the packed weight, plus its bias: [.., out_features].

    `out_dtype` is that of `x` (None), or float32: on CUDA the sums as they are, without a kernel for the conversion.
    `out`, contiguous and of that dtype, gets the result where it is given.
    """
    _check(x, packed)
    out_dtype = x.dtype if out_dtype is None else out_dtype
    if out_dtype not in (x.dtype, torch.float32):
        raise InvalidArgument(f"out_dtype is {out_dtype} and x has {x.dtype}; pass that or torch.float32")
    shape = (*x.shape[:-1], packed.out_features)
    if out is not None:
        expect_shape("out", out, *shape)
        expect_dtype("out", out, out_dtype)
        expect_device("out", out, x)
        expect_contiguous("out", out)
    if packed.format == "onednn":
        result = torch.ops.mkldnn._linear_pointwise.default(x, packed.weight, packed.bias, "none", [], "")
        return cast(Tensor, result) if out is None else out.copy_(result)
    tokens = x.reshape(-1, packed.in_features)
    is_skinny = _is_skinny(tokens, packed)
    if is_skinny or (x.is_cuda and out_dtype != x.dtype and x.dtype.itemsize == 2):
        if out is None:
            out = x.new_empty(shape, dtype=out_dtype)
        rows = out.view(-1, packed.out_features)
        if is_skinny:
            dispatch.skinny_linear(tokens, packed.weight, packed.bias, None, rows)
        else:
            torch.mm(tokens, packed.weight.t(), out_dtype=out_dtype, out=rows)
            if packed.bias is not None:
                rows.add_(packed.bias)
        return out
    result = F.linear(x, packed.weight, packed.bias)
    return result.to(out_dtype) if out is None else out.copy_(result)


def linear_act(x: Tensor, packed: PackedLinear, kind: Activation) -> Tensor:
    """`act_mul` of the layer's outputs: act(first half) * second half, [tokens, out_features / 2] for `x` [tokens, ..].

    On CUDA one kernel does both for few tokens, with the results of the two.
    """
    _check(x, packed)
    if kind not in get_args(Activation):
        raise InvalidArgument(f"kind is {kind!r}; pass one of {', '.join(get_args(Activation))}")
    if x.dim() != 2 or packed.out_features % 2:
        raise InvalidArgument(
            f"x has shape {list(x.shape)} and the layer {packed.out_features} outputs; pass [tokens, in_features] and "
            "an even number of outputs"
        )
    if not _is_skinny(x, packed):
        return act_mul(linear(x, packed), kind)
    out = x.new_empty((x.shape[0], packed.out_features // 2))
    dispatch.skinny_linear(x, packed.weight, packed.bias, kind, out)
    return out


def _check(x: Tensor, packed: PackedLinear) -> None:
    if x.shape[-1] != packed.in_features:
        raise InvalidArgument(f"x has shape {list(x.shape)}; its last dimension must be {packed.in_features}")


def _is_skinny(x: Tensor, packed: PackedLinear) -> bool:
    """Whether our own kernel serves `x` [tokens, in_features]: on CUDA, few tokens, a layout that it takes."""
    if dispatch.skinny_linear.implementation_names.get(x.device.type) != "device":
        return False
    if not device_linear.pays(x.shape[0], packed.out_features, packed.in_features):
        return False
    return device_linear.fits(x, packed.weight)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
