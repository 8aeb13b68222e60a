"""config.json as transformers reads it, family by family, in what files say and in what they leave out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from wllm_runtime.checkpoint import UnsupportedCheckpoint
from wllm_runtime.checkpoint.architectures import read_config
from wllm_runtime.checkpoint.model_config import MODEL_TYPES, ModelConfig

SMALL: dict[str, Any] = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
FILES: list[dict[str, Any]] = [
    {},
    SMALL,
    SMALL | {"sliding_window": None},
    SMALL | {"num_key_value_heads": 2, "head_dim": 32, "vocab_size": 77, "intermediate_size": 99, "hidden_act": "gelu"},
    SMALL | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    SMALL | {"bos_token_id": None, "eos_token_id": [3, 4], "torch_dtype": "bfloat16"},
    SMALL | {"dtype": None, "torch_dtype": "float16"},
    SMALL | {"dtype": "float16", "max_position_embeddings": 512, "rope_theta": 5e5, "rope_scaling": None},
    SMALL | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    SMALL | {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 1e6},
    SMALL | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 3e4}},
    SMALL | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    SMALL | {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 5e5},
    SMALL | {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}, "rope_theta": 7.0},
    SMALL | {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.5}},
]
# What only some of transformers' classes have; the others' models do not look at it.
PARTIAL = {
    "attention_bias": ("llama", "qwen3"),
    "mlp_bias": ("llama",),
    "layer_types": ("qwen2", "qwen3"),
    "sliding_window": ("mistral", "qwen2", "qwen3"),
    "head_dim": ("llama", "mistral", "qwen3"),
}


CASES = [(model_type, values) for model_type in MODEL_TYPES for values in FILES]
CASES += [
    ("llama", SMALL | {"num_key_value_heads": None, "head_dim": None}),
    ("qwen3", SMALL | {"use_sliding_window": True, "sliding_window": 16, "layer_types": ["sliding_attention"] * 3}),
]


@pytest.mark.parametrize(("model_type", "values"), CASES)
def test_files_mean_what_they_mean_to_transformers(tmp_path: Path, model_type: str, values: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **values}), encoding="utf-8")
    ours, theirs = read_config(tmp_path), AutoConfig.from_pretrained(tmp_path)
    for field in dataclasses.fields(ModelConfig):
        mine, other = getattr(ours, field.name), getattr(theirs, field.name, ())
        if model_type in PARTIAL.get(field.name, MODEL_TYPES):
            assert mine == (tuple(other) if field.name == "layer_types" else other), field.name
        elif field.name == "head_dim":
            assert mine == (values.get("head_dim") or ours.hidden_size // ours.num_attention_heads)
        elif field.name != "layer_types":
            assert not mine, field.name


def test_layers_of_families_with_one_kind() -> None:
    llama = ModelConfig.from_values("llama", SMALL | {"sliding_window": 8})
    assert (llama.layer_types, llama.sliding_window) == (("full_attention",) * 3, None)
    mistral = ModelConfig.from_values("mistral", SMALL)
    assert (mistral.layer_types, mistral.sliding_window) == (("sliding_attention",) * 3, 4096)


def test_a_ministral_in_disguise_is_refused(tmp_path: Path) -> None:
    values = SMALL | {"model_type": "mistral", "layer_types": ["sliding_attention"] * 3}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UnsupportedCheckpoint, match="layer_types, which makes it a Ministral"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": "wide"}, "hidden_size is 'wide', and must be of type int"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, and must be a whole number of at least 1"),
        ({"hidden_size": 66}, "hidden_size 66 makes no even heads of 4"),
        ({"head_dim": 15}, "no even heads"),
        ({"dtype": "float17"}, "dtype is 'float17'"),
        ({"rope_scaling": {"type": "linear"}}, "type 'linear' have factor None, and need a number"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "type 'linear' have factor 0, and need a number above 0"),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, "type 'yarn' have factor '4', which is no number"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": -1}},
            "beta_fast -1, which is no number",
        ),
        (
            {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 0}},
            "have original_max_position_embeddings 0, and need a number above 0",
        ),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"rope_type \['yarn'\], and need a name"),
        ({"layer_types": ["full_attention", 3, None]}, "layer_types is .* and must be names"),
        ({"rope_theta": float("nan")}, "type 'default' have rope_theta nan"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}, r"differ by kind of layer \(full_attention\)"),
        ({"torch_dtype": 16}, "torch_dtype is 16, and must be of type str"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\], and must be of type dict"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, and num_hidden_layers is 3"),
    ],
)
def test_odd_values_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_values("qwen2", SMALL | values)


def test_dtypes_are_torchs() -> None:
    assert ModelConfig.from_values("llama", SMALL | {"torch_dtype": "torch.float16"}).dtype == torch.float16
    assert ModelConfig.from_values("llama", SMALL).dtype is None
