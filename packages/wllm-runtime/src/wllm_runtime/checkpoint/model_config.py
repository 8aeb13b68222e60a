"""`ModelConfig`: what a config.json says of a model, with what its family means where the file is silent.

The names, the meanings and the silent values are those of transformers' configuration classes; the tests compare. Those
are not used themselves: importing transformers opens over three thousand files, which costs a start seconds where a
virus scanner looks at each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_SILENT: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA
    | {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
}
MODEL_TYPES = tuple(_SILENT)
_ROPE_THETA = 10000.0
# What a scaling method cannot do without, by its name.
_ROPE_NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
}
# What YaRN has a value of its own for, where the file says nothing or 0.
_ROPE_OPTIONAL = ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's configuration by the names of config.json. `dtype` is None where the file names none.

    `rope_parameters` hold `rope_type`, `rope_theta` and what the type needs. `layer_types` has an entry a layer, and
    `sliding_window` is the window in tokens of those that are "sliding_attention", None for no window.
    """

    model_type: str
    dtype: torch.dtype | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_act: str
    rms_norm_eps: float
    max_position_embeddings: int
    rope_parameters: Mapping[str, Any]
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    layer_types: tuple[str, ...]
    bos_token_id: int | None
    eos_token_id: int | list[int] | None

    @classmethod
    def from_values(cls, model_type: str, values: Mapping[str, Any]) -> ModelConfig:
        """Read the object of a config.json of a family in `MODEL_TYPES`; raises `ValueError` naming an odd field."""
        said = _Values(_SILENT[model_type] | dict(values))
        hidden_size, num_heads = said.size("hidden_size"), said.size("num_attention_heads")
        num_layers, positions = said.size("num_hidden_layers"), said.size("max_position_embeddings")
        head_dim = said.size("head_dim", hidden_size // num_heads)
        if head_dim % 2 or (values.get("head_dim") is None and model_type != "qwen3" and hidden_size % num_heads):
            raise ValueError(f"hidden_size {hidden_size} makes no even heads of {num_heads} num_attention_heads")
        window = said.typed("sliding_window", (int,), None)
        if model_type == "llama" or (model_type != "mistral" and not said.typed("use_sliding_window", (bool,), False)):
            window = None
        return cls(
            model_type=model_type,
            dtype=_dtype(said.typed("dtype", (str,), None) or said.typed("torch_dtype", (str,), None)),
            vocab_size=said.size("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=said.size("intermediate_size"),
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=said.size("num_key_value_heads", num_heads),
            head_dim=head_dim,
            hidden_act=said.typed("hidden_act", (str,), "silu"),
            rms_norm_eps=said.typed("rms_norm_eps", (float, int), 1e-6),
            max_position_embeddings=positions,
            rope_parameters=_rope(said, positions),
            tie_word_embeddings=said.typed("tie_word_embeddings", (bool,), False),
            # The other families have no such switch: what their files may say of it means nothing.
            attention_bias=model_type in ("llama", "qwen3") and said.typed("attention_bias", (bool,), False),
            mlp_bias=model_type == "llama" and said.typed("mlp_bias", (bool,), False),
            sliding_window=window,
            layer_types=_layer_types(said, model_type, num_layers, window),
            bos_token_id=said.typed("bos_token_id", (int,), None),
            eos_token_id=said.typed("eos_token_id", (int, list), None),
        )


class _Values:
    """Typed access by name; null is as good as absent."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def typed(self, name: str, types: tuple[type, ...], silent: T) -> Any | T:
        value = self._values.get(name)
        if value is None:
            return silent
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise ValueError(f"{name} is {value!r}, and must be of type {' or '.join(t.__name__ for t in types)}")
        return value

    def size(self, name: str, silent: int | None = None) -> int:
        value = self.typed(name, (int,), silent)
        if value is None or value < 1:
            raise ValueError(f"{name} is {value!r}, and must be a whole number of at least 1")
        return int(value)


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype is {name!r}, which PyTorch does not know")
    return found


def _rope(said: _Values, positions: int) -> dict[str, Any]:
    # Older files say rope_theta and rope_scaling (with "type"), newer ones rope_parameters.
    given = said.typed("rope_scaling", (dict,), None) or said.typed("rope_parameters", (dict,), None) or {}
    nested = [name for name, value in given.items() if isinstance(value, dict)]
    if nested:
        raise ValueError(f"rope_parameters differ by kind of layer ({', '.join(nested)}), and must be those of all")
    theta = said.typed("rope_theta", (float, int), _ROPE_THETA)
    parameters = {"rope_type": given.get("type", "default"), "rope_theta": theta, **given}
    partial = said.typed("partial_rotary_factor", (float, int), None)
    if partial is not None:
        parameters.setdefault("partial_rotary_factor", partial)
    kind = parameters["rope_type"]
    if not isinstance(kind, str):
        raise ValueError(f"rope_parameters have rope_type {kind!r}, and need a name")
    if kind in ("llama3", "yarn"):
        original = said.typed("original_max_position_embeddings", (int,), None)
        parameters["original_max_position_embeddings"] = original or given.get(
            "original_max_position_embeddings", positions
        )
    for name in ("rope_theta", *_ROPE_NEEDS.get(kind, ())):
        if not _is_number(parameters.get(name)) or not parameters[name]:
            raise ValueError(
                f"rope_parameters of type {kind!r} have {name} {parameters.get(name)!r}, and need a number above 0"
            )
    for name in _ROPE_OPTIONAL:
        value = parameters.get(name)
        if value is not None and not _is_number(value):
            raise ValueError(f"rope_parameters of type {kind!r} have {name} {value!r}, which is no number from 0 on")
    return parameters


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _layer_types(said: _Values, model_type: str, num_layers: int, window: int | None) -> tuple[str, ...]:
    if model_type == "llama":
        return ("full_attention",) * num_layers
    given = said.typed("layer_types", (list,), None)
    if given is not None:
        if len(given) != num_layers:
            raise ValueError(f"layer_types has {len(given)} entries, and num_hidden_layers is {num_layers}")
        if not all(isinstance(kind, str) for kind in given):
            raise ValueError(f"layer_types is {given!r}, and must be names")
        return tuple(given)
    if window is None:
        return ("full_attention",) * num_layers
    full = 0 if model_type == "mistral" else said.typed("max_window_layers", (int,), 0)
    return tuple("full_attention" if layer < full else "sliding_attention" for layer in range(num_layers))
