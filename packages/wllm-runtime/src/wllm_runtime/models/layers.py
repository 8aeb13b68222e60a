"""The layers of the decoder: plain modules over `wllm_kernels` ops; every forward takes the step's batch explicitly."""

from __future__ import annotations

import torch
from torch import nn

from wllm_kernels import (
    Activation,
    PackedLinear,
    linear,
    linear_act,
    pack_linear,
    paged_attention,
    rms_norm,
    rope_kv_write,
)
from wllm_runtime.models.batch import StepBatch
from wllm_runtime.models.decoder_config import DecoderConfig


class Linear(nn.Module):
    """y = x W^T + b, with W [out, in] left uninitialised for the loader; `pack` comes before the first forward."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = _parameter(out_features, in_features)
        self.bias = _parameter(out_features) if bias else None
        self._packed: PackedLinear | None = None

    def pack(self) -> None:
        """Turn the loaded weight into the layout of the hardware, and let go of the plain one."""
        self._packed = pack_linear(self.weight, self.bias)
        del self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self._packed is not None, "a layer is packed before it runs"
        return linear(x, self._packed)

    def scores(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """y in float32, in `out` if given."""
        assert self._packed is not None, "a layer is packed before it runs"
        return linear(x, self._packed, out_dtype=torch.float32, out=out)

    def activated(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """act(first half of y) * second half of y."""
        assert self._packed is not None, "a layer is packed before it runs"
        return linear_act(x, self._packed, activation)


class RMSNorm(nn.Module):
    """Root-mean-square norm; with a residual, `residual += x` first and the normed sum is returned."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = _parameter(size)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Add x into `residual` in place and return the norm of the sum."""
        normed, _ = rms_norm(x, self.weight, self.eps, residual)
        return normed


class Attention(nn.Module):
    """Grouped-query attention over the paged KV cache, with one fused projection for q, k and v."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.scale = config.head_dim**-0.5
        self.window = config.windows[layer]
        self.eps = config.rms_norm_eps
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = Linear(config.hidden_size, width, config.qkv_bias)
        self.output = Linear(config.num_heads * config.head_dim, config.hidden_size, config.output_bias)
        self.q_norm = _parameter(config.head_dim) if config.qk_norm else None
        self.k_norm = _parameter(config.head_dim) if config.qk_norm else None

    def forward(self, x: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        kv, kv_scale = batch.kv[self.layer], batch.kv_scales[self.layer]
        q = rope_kv_write(
            self.qkv(x),
            batch.rope_positions,
            batch.cos_sin,
            kv,
            batch.cells,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=self.eps,
            kv_scale=kv_scale,
            plan=batch.rope_plan,
        )
        attended = paged_attention(
            q,
            kv,
            batch.block_table,
            batch.seq_lens,
            batch.cu_q,
            scale=self.scale,
            window=self.window,
            kv_scale=kv_scale,
            plan=batch.attention_plans[self.window],
        )
        return self.output(attended.view(x.shape[0], -1))


class MLP(nn.Module):
    """Gated feed-forward layer with one fused projection for gate and up."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate_up.activated(x, self.activation))


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)
