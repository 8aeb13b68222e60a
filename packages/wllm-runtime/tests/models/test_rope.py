"""The rotation equals transformers' for every scaling method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from wllm_runtime import UnsupportedModel
from wllm_runtime.models.rope import RopeConfig

METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128},
    "yarn-attention-factor": {"factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 0.7},
    "yarn-mscale": {
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
        "beta_fast": 16,
        "beta_slow": 2,
    },
    "yarn-untruncated": {"factor": 4.0, "original_max_position_embeddings": 128, "truncate": False},
    "dynamic": {"factor": 2.0},
}


def build(method: str, head_dim: int = 32) -> tuple[RopeConfig, LlamaRotaryEmbedding]:
    kind = method.split("-")[0]
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=512,
        rope_parameters={"rope_type": kind, "rope_theta": 50000.0, **METHODS[method]},
    )
    return RopeConfig.from_parameters(config.rope_parameters, head_dim, 512), LlamaRotaryEmbedding(config)


def expected(rotation: LlamaRotaryEmbedding, positions: torch.Tensor) -> torch.Tensor:
    cos, sin = rotation(torch.zeros(1), positions[None])
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("head_dim", [16, 64])
def test_table_equals_transformers(method: str, head_dim: int) -> None:
    rope, rotation = build(method, head_dim)
    table = rope.cos_sin_table(512, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(table, expected(rotation, torch.arange(512)), atol=1e-4, rtol=1e-4)


def test_dynamic_rows_grow_with_the_text() -> None:
    rope, rotation = build("dynamic")
    for length in (100, 512, 513, 700, 1024):
        positions = torch.arange(length)
        rows = rope.cos_sin_rows(positions, torch.full((length,), length), torch.float32)
        torch.testing.assert_close(rows, expected(rotation, positions), atol=1e-4, rtol=1e-4)


def test_stored_factors_divide_the_frequencies() -> None:
    plain = RopeConfig("default", 10000.0, 8, 64, {})
    scaled = RopeConfig("default", 10000.0, 8, 64, {}, freq_factors=(1.0, 2.0, 4.0, 8.0))
    ratio = plain._inv_freq()[0] / scaled._inv_freq()[0]
    torch.testing.assert_close(ratio, torch.tensor([1.0, 2.0, 4.0, 8.0]))


def test_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="'longrope'"):
        RopeConfig.from_parameters({"rope_type": "longrope", "rope_theta": 1e4}, 8, 64)


@pytest.mark.parametrize(
    ("method", "context"), [("default", 512), ("linear", 1536), ("dynamic", 1024), ("llama3", 512)]
)
def test_longest_context(method: str, context: int) -> None:
    assert build(method)[0].longest_context == context
