"""One parametric decoder for Llama 2/3, Mistral, Qwen2, Qwen3 and SmolLM2."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from wllm_kernels import PackedLinear, linear, pack_linear
from wllm_runtime.models.batch import StepBatch
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.models.layers import MLP, Attention, Linear, RMSNorm


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each after its norm; the residual stream is updated in place."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor | None, residual: torch.Tensor, batch: StepBatch) -> torch.Tensor:
        # x is what the layer below has not yet added to the residual; the first layer gets None.
        normed = self.input_norm(residual) if x is None else self.input_norm.add(x, residual)
        attended = self.attention(normed, batch)
        return self.mlp(self.mlp_norm.add(attended, residual))


class Decoder(nn.Module):
    """Token ids to final hidden states; `logits` turns chosen states into scores.

    Parameters are created uninitialised in the current default dtype and device and filled by `weights.load`; `pack`
    comes after that and before the first forward.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size)
        self._tied_head: PackedLinear | None = None

    def pack(self) -> None:
        """Lay the loaded weights out for the hardware."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()
        if self.head is None:
            self._tied_head = pack_linear(self.embedding)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Hidden states [tokens, hidden] after the last norm; writes the KV cache."""
        residual = functional.embedding(batch.input_ids, self.embedding)
        x: torch.Tensor | None = None
        for layer in self.layers:
            x = layer(x, residual, batch)
        return self.norm(residual) if x is None else self.norm.add(x, residual)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 scores [rows, vocab] of hidden states [rows, hidden], in `out` if given."""
        if self.head is not None:
            return self.head.scores(hidden, out)
        assert self._tied_head is not None, "a model is packed before it runs"
        return linear(hidden, self._tied_head, out_dtype=torch.float32, out=out)
