"""Cases of linear layers for the tokens of a decode step: the library's product, ours, and the bandwidth bound."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from _attention_cases import Row
from _gpu import Gpu
from torch import Tensor

from wllm_kernels import act_mul, linear, linear_act, pack_linear

# Inputs and outputs of the layers of Qwen2.5-0.5B and Llama-3.1-8B; gate_up feeds a gated activation.
LAYERS = {
    "0.5B qkv": (896, 1152),
    "0.5B output": (896, 896),
    "0.5B gate_up": (896, 9728),
    "0.5B down": (4864, 896),
    "0.5B head": (896, 151936),
    "8B qkv": (4096, 6144),
    "8B output": (4096, 4096),
    "8B gate_up": (4096, 28672),
    "8B down": (14336, 4096),
    "8B head": (4096, 128256),
}
TOKENS = (1, 2, 4, 8, 12, 16, 32)
QUICK_TOKENS = (1, 8)


def linears(gpu: Gpu, quick: bool) -> Iterator[Row]:
    """bfloat16 layers of few tokens, weights cold: what `linear` and `linear_act` choose, and the library alone."""
    for name, (inputs, outputs) in LAYERS.items():
        copies = gpu.copies(2 * inputs * outputs)
        weights = torch.empty(copies, outputs, inputs, dtype=torch.bfloat16, device="cuda").normal_(std=0.02)
        for tokens in QUICK_TOKENS if quick else TOKENS:
            yield {"layer": name, **_row(gpu, weights, tokens, gated=name.endswith("gate_up"))}


def _row(gpu: Gpu, weights: Tensor, tokens: int, *, gated: bool) -> Row:
    copies, _, inputs = weights.shape
    size = 2 * weights[0].numel()
    packed = [pack_linear(weight) for weight in weights]
    x = torch.randn(tokens, inputs, dtype=torch.bfloat16, device="cuda")
    ours = gpu.time(lambda i: linear(x, packed[i]), copies).median
    library = gpu.time(lambda i: F.linear(x, weights[i]), copies).median
    row: Row = {
        "tokens": tokens,
        "W MB": size / 1e6,
        "us": ours * 1e6,
        "GB/s": size / ours / 1e9,
        "of copy": size / ours / gpu.copy_bandwidth,
        "library us": library * 1e6,
        "x library": library / ours,
    }
    if gated:
        fused = gpu.time(lambda i: linear_act(x, packed[i], "silu"), copies).median
        apart = gpu.time(lambda i: act_mul(linear(x, packed[i]), "silu"), copies).median
        row |= {"gated us": fused * 1e6, "and act_mul us": apart * 1e6}
    return row
