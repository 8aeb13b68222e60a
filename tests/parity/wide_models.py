"""Random models with heads as wide as real ones have, for the kernels that compute in 16 bits.

Values keep near 1 and layers add to the residual what they add in a trained model, so that rounding does no more harm
than there; with plain random layers each one would multiply the error of the last. The output head spreads the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 1000
CONTEXT = 512
_LAYERS = 4
_LOGIT_SPREAD = 2.0
_OPTION_SPREAD = 0.2


@dataclass(frozen=True)
class WideModel:
    """A transformers config class, and the options beyond the common shape."""

    config_class: type[transformers.PretrainedConfig]
    options: Mapping[str, Any]

    def save(self, folder: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
        """Save the model in `dtype`; the float32 model of those same rounded weights."""
        hidden_size = self.options["hidden_size"]
        config = self.config_class(
            vocab_size=VOCAB_SIZE,
            intermediate_size=2 * hidden_size,
            num_hidden_layers=_LAYERS,
            max_position_embeddings=CONTEXT,
            initializer_range=1 / math.sqrt(hidden_size),
            bos_token_id=1,
            eos_token_id=2,
            **self.options,
        )
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.data.normal_(1.0 if "norm" in name else 0.0, _OPTION_SPREAD)
            elif "o_proj" in name or "down_proj" in name:
                parameter.data.div_(math.sqrt(2 * _LAYERS))
        model.get_input_embeddings().weight.data.normal_()
        model.get_output_embeddings().weight.data.normal_(0.0, _LOGIT_SPREAD / math.sqrt(hidden_size))
        model.to(dtype).save_pretrained(folder)
        return model.float().eval()


WIDE_MODELS = {
    # Seven queries a key, as in Qwen2.5-0.5B; four, as in Llama 3.
    "qwen2-64": WideModel(
        transformers.Qwen2Config, {"hidden_size": 448, "num_attention_heads": 7, "num_key_value_heads": 1}
    ),
    "llama-128": WideModel(
        transformers.LlamaConfig, {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 1}
    ),
    "qwen3-128": WideModel(
        transformers.Qwen3Config,
        {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128},
    ),
    "mistral-64-window": WideModel(
        transformers.MistralConfig,
        {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 40},
    ),
}
