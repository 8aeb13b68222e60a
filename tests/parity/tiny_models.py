"""Tiny random models, one for each family and option that the decoder knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 160
CONTEXT = 256

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    # Wide enough that scores differ: with the usual 0.02 a random model's logits all but coincide.
    "initializer_range": 0.3,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class TinyModel:
    """A transformers config class and what differs from the common shape. `max_window` is its sliding window, or 0."""

    name: str
    config_class: type[transformers.PretrainedConfig]
    options: Mapping[str, Any]

    @property
    def window(self) -> int:
        return int(self.options.get("sliding_window") or 0)

    def config(self) -> transformers.PretrainedConfig:
        return self.config_class(**{**_SHAPE, **self.options})

    def build(self) -> transformers.PreTrainedModel:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(self.config(), dtype=torch.float32)
        for name, parameter in model.named_parameters():
            # Biases and norms are 0 and 1 in a fresh model, which would hide a wrong one.
            if name.endswith("bias") or "norm" in name:
                parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.3)
        return model.eval()

    def save(self, folder: Path) -> transformers.PreTrainedModel:
        model = self.build()
        model.save_pretrained(folder)
        return model


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


_LLAMA, _MISTRAL = transformers.LlamaConfig, transformers.MistralConfig
_QWEN2, _QWEN3 = transformers.Qwen2Config, transformers.Qwen3Config

TINY_MODELS = {
    model.name: model
    for model in (
        TinyModel("llama", _LLAMA, {}),
        TinyModel("llama-mha", _LLAMA, {"num_key_value_heads": 6}),
        TinyModel("llama-mqa-wide-heads", _LLAMA, {"num_key_value_heads": 1, "head_dim": 16}),
        TinyModel("llama-biases", _LLAMA, {"attention_bias": True, "mlp_bias": True}),
        TinyModel("smollm2-tied", _LLAMA, {"tie_word_embeddings": True, **_rope("default", rope_theta=100000.0)}),
        TinyModel("llama-linear", _LLAMA, _rope("linear", factor=4.0)),
        TinyModel(
            "llama3",
            _LLAMA,
            _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
        ),
        TinyModel("llama-yarn", _LLAMA, _rope("yarn", factor=4.0, original_max_position_embeddings=64)),
        # A short original context, so that texts grow beyond it.
        TinyModel("llama-dynamic", _LLAMA, {"max_position_embeddings": 48, **_rope("dynamic", factor=4.0)}),
        TinyModel("mistral", _MISTRAL, {"sliding_window": None}),
        TinyModel("mistral-window", _MISTRAL, {"sliding_window": 24}),
        TinyModel("qwen2", _QWEN2, {}),
        TinyModel("qwen2-unused-window", _QWEN2, {"use_sliding_window": False, "sliding_window": None}),
        TinyModel(
            "qwen2-window-in-upper-layers",
            _QWEN2,
            {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        ),
        TinyModel("qwen3", _QWEN3, {"head_dim": 16}),
        TinyModel("qwen3-biases", _QWEN3, {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
        TinyModel(
            "qwen3-window",
            _QWEN3,
            {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2, "head_dim": 8},
        ),
    )
}
