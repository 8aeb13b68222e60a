"""Linear layers with weights packed once for the hardware.

The layout of a packed weight belongs to this module: make one with `pack_linear`, use it with `linear`. Quantised
formats will join the same border. On a CPU float32 weights go into oneDNN's blocked layout: for the few rows of a
decode step that is two to three times faster than the library's plain matrix product, which packs again on each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from wllm_kernels.errors import InvalidArgument
from wllm_kernels.ops.checks import expect_dtype, expect_shape


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The weight of a linear layer in the layout that `format` names; `weight` is not to be read by others."""

    format: Literal["dense", "onednn"]
    in_features: int
    out_features: int
    weight: Tensor
    bias: Tensor | None


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """Pack `weight` [out_features, in_features] and `bias` [out_features]; a packed copy does not share `weight`."""
    expect_shape("weight", weight, None, None)
    out_features, in_features = weight.shape
    if bias is not None:
        expect_shape("bias", bias, out_features)
        expect_dtype("bias", bias, weight.dtype)
        bias = bias.detach()
    weight = weight.detach()
    if weight.device.type == "cpu" and weight.dtype == torch.float32 and _has_onednn():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return PackedLinear("onednn", in_features, out_features, packed, bias)
    return PackedLinear("dense", in_features, out_features, weight, bias)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    """`x` [.., in_features] times the packed weight, plus its bias: [.., out_features]."""
    if x.shape[-1] != packed.in_features:
        raise InvalidArgument(f"x has shape {list(x.shape)}; its last dimension must be {packed.in_features}")
    if packed.format == "dense":
        return F.linear(x, packed.weight, packed.bias)
    result = torch.ops.mkldnn._linear_pointwise.default(x, packed.weight, packed.bias, "none", [], "")
    return cast(Tensor, result)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
