"""What makes one vector of a transformer's output: pooling and dense layers, or the score of a classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from wllm_runtime.checkpoint import PoolingCheckpoint
from wllm_runtime.checkpoint.pooling import DenseLayer
from wllm_runtime.checkpoint.sentence_modules import PoolingMode
from wllm_runtime.errors import UnsupportedModel
from wllm_runtime.pooling.encoder import Encoder
from wllm_sched import PooledText

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Identity": lambda values: values,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "GELU": nn.functional.gelu,
    "ReLU": torch.relu,
}


class EmbeddingHead:
    """Pools hidden states. `description` says how, and why so."""

    def __init__(self, encoder: Encoder, checkpoint: PoolingCheckpoint) -> None:
        modules = checkpoint.modules
        self._encoder = encoder
        for layer in checkpoint.dense:
            _check_activation(layer.activation, checkpoint)
        self._dense = [_on_device(layer, encoder) for layer in checkpoint.dense]
        if modules.pooling is not None:
            self.mode, reason = modules.pooling, "the model's own"
        elif encoder.is_causal:
            self.mode, reason = "last", "the model does not say; only the last token has seen all others"
        else:
            self.mode, reason = "mean", "the model does not say; this is what sentence-transformers does then"
        self.size = self._dense[-1].weight.shape[0] if self._dense else encoder.hidden_size
        dense = f", {len(self._dense)} dense layers" if self._dense else ""
        self.description = (self.mode + dense, reason)

    @torch.inference_mode()
    def vectors(self, texts: Sequence[PooledText]) -> torch.Tensor:
        """The vectors [texts, size], float32 on the CPU; not of unit length yet."""
        hidden, mask = self._encoder.hidden(texts)
        pooled = pool(hidden, mask, self.mode)
        for layer in self._dense:
            pooled = _ACTIVATIONS[layer.activation](nn.functional.linear(pooled, layer.weight, layer.bias))
        return pooled.cpu()


class ScoringHead:
    """The one label of a cross-encoder, through the activation that its authors use: a sigmoid if they do not say."""

    def __init__(self, encoder: Encoder, checkpoint: PoolingCheckpoint) -> None:
        if encoder.num_labels != 1:
            raise UnsupportedModel(
                f"{checkpoint.path} is a classifier of {encoder.num_labels} labels, and wLLM runs those of one, which "
                "score pairs of texts. Use a reranker."
            )
        self._encoder = encoder
        self.size = 1
        own = checkpoint.values.get("sentence_transformers")
        named = own.get("activation_fn") if isinstance(own, dict) else None
        named = named or checkpoint.values.get("sbert_ce_default_activation_function")
        self._name = str(named).rpartition(".")[2] if named else "Sigmoid"
        _check_activation(self._name, checkpoint)
        self.description = (self._name, "the model's own" if named else "the model does not say")

    @torch.inference_mode()
    def vectors(self, texts: Sequence[PooledText]) -> torch.Tensor:
        """The scores [texts, 1], float32 on the CPU."""
        return _ACTIVATIONS[self._name](self._encoder.logits(texts)).cpu()


def pool(hidden: torch.Tensor, mask: torch.Tensor, mode: PoolingMode) -> torch.Tensor:
    """One vector a row: `hidden` [rows, tokens, size], `mask` [rows, tokens] with 1 for tokens, which come first."""
    if mode == "cls":
        return hidden[:, 0]
    if mode == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(dim=1) - 1]
    if mode == "max":
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


def _on_device(layer: DenseLayer, encoder: Encoder) -> DenseLayer:
    bias = None if layer.bias is None else layer.bias.to(encoder.device)
    return DenseLayer(layer.weight.to(encoder.device), bias, layer.activation)


def _check_activation(name: str, checkpoint: PoolingCheckpoint) -> None:
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"{checkpoint.path} asks for the activation {name!r}, which wLLM does not know. Supported: "
            f"{', '.join(_ACTIVATIONS)}."
        )
