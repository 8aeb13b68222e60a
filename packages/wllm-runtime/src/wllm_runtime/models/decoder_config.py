"""The decoder's configuration, read from a model's: the one place that knows how families differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wllm_kernels import Activation
from wllm_runtime.errors import UnsupportedModel
from wllm_runtime.models.rope import RopeConfig

if TYPE_CHECKING:
    from wllm_runtime.checkpoint.model_config import ModelConfig

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shapes and switches of a decoder. `windows[layer]` is the sliding window in tokens, 0 for full attention."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    activation: Activation
    max_position_embeddings: int
    rope: RopeConfig
    windows: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of K and V that one token takes in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    @classmethod
    def from_pretrained(cls, config: ModelConfig) -> DecoderConfig:
        """Read a llama, mistral, qwen2 or qwen3 config; raises `UnsupportedModel` for anything else."""
        family = config.model_type
        if family not in FAMILIES:
            raise UnsupportedModel(
                f"model type {family!r} is not supported; this version runs {', '.join(sorted(FAMILIES))}"
            )
        if config.hidden_act not in ACTIVATIONS:
            raise UnsupportedModel(
                f"activation {config.hidden_act!r} is not supported; known: {', '.join(ACTIVATIONS)}"
            )
        attention_bias = bool(getattr(config, "attention_bias", False))
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            architecture=family,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
            head_dim=head_dim,
            rms_norm_eps=config.rms_norm_eps,
            activation=ACTIVATIONS[config.hidden_act],
            max_position_embeddings=config.max_position_embeddings,
            rope=RopeConfig.from_parameters(config.rope_parameters, head_dim, config.max_position_embeddings),
            windows=_windows(config),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=attention_bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            qk_norm=family == "qwen3",
            tie_word_embeddings=bool(config.tie_word_embeddings),
        )


FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def _windows(config: ModelConfig) -> tuple[int, ...]:
    window = getattr(config, "sliding_window", None) or 0
    # Mistral has one window for all layers; the Qwen families say it layer by layer.
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    known = {"sliding_attention": window, "full_attention": 0}
    unknown = sorted(set(kinds) - known.keys())
    if unknown:
        raise UnsupportedModel(f"layer types {unknown} are not supported; known: {', '.join(known)}")
    return tuple(known[kind] for kind in kinds)
