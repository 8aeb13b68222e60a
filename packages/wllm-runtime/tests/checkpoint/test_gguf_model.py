"""Whole GGUF files: weights, configuration and special cases, against the transformers model they were made from."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from wllm_runtime.checkpoint import (
    Checkpoint,
    CheckpointError,
    DamagedCheckpoint,
    UnsupportedCheckpoint,
    open_checkpoint,
)
from wllm_runtime.checkpoint.architectures import read_config

Open = Callable[..., Checkpoint]


@pytest.fixture
def open_gguf(make_model: Any, write_gguf: Any) -> Any:
    """Writes a tiny llama model as GGUF with changed `metadata` (or other arguments) and opens it, weights closed."""

    def write_and_open(metadata: dict[str, Any] | None = None, **arguments: Any) -> Checkpoint:
        checkpoint = open_checkpoint(write_gguf(make_model(), metadata=metadata, **arguments))
        assert checkpoint.weights is not None
        checkpoint.weights.close()
        return checkpoint

    return write_and_open


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head size": ("llama", {"head_dim": 16}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama no GQA": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 12}),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_the_model(family: str, make_model: Any, write_gguf: Any) -> None:
    model = make_model(FAMILIES[family][0], **FAMILIES[family][1])
    checkpoint = open_checkpoint(write_gguf(model))
    expected = model.state_dict()
    if model.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert checkpoint.weights is not None and set(checkpoint.weights.names()) == set(expected)
    for name in checkpoint.weights.names():
        assert torch.equal(checkpoint.weights.read(name), expected[name]), name
    checkpoint.weights.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_config_is_that_of_the_model(family: str, make_model: Any, write_gguf: Any, tmp_path: Path) -> None:
    model = make_model(FAMILIES[family][0], **FAMILIES[family][1])
    config = dataclasses.asdict(open_checkpoint(write_gguf(model), load_format="dummy").config)
    model.config.save_pretrained(tmp_path / "saved")
    expected = dataclasses.asdict(read_config(tmp_path / "saved"))
    assert config.pop("rms_norm_eps") == pytest.approx(expected.pop("rms_norm_eps"), rel=1e-6)  # float32 in the file
    assert config["dtype"] is None  # each tensor has its own
    if family == "mistral":  # nothing in a file tells Mistral without a window from Llama
        assert config.pop("model_type") == "llama" and expected.pop("model_type") == "mistral"
        assert expected["sliding_window"] is None
        assert config.pop("layer_types") and expected.pop("layer_types")
    assert config == expected


def test_names_come_in_file_order(make_model: Any, write_gguf: Any) -> None:
    model = make_model()
    weights = open_checkpoint(write_gguf(model)).weights
    assert weights is not None and list(weights.names()) == list(model.state_dict())
    weights.close()


def test_quantised_weights_are_unpermuted_too(make_model: Any, write_gguf: Any) -> None:
    model = make_model(intermediate_size=64)
    kind = gguf.GGMLQuantizationType.Q8_0
    weights = open_checkpoint(write_gguf(model, quantize=lambda _: kind)).weights
    assert weights is not None
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (weights.read(name) - model.state_dict()[name]).abs().max() < 0.05
    weights.close()


def test_sliding_window_makes_a_mistral(open_gguf: Open) -> None:
    config = open_gguf({"llama.attention.sliding_window": 16}).config
    assert config.model_type == "mistral" and config.sliding_window == 16


def test_the_window_of_a_qwen_is_not_used_and_named(
    make_model: Any, write_gguf: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_gguf(make_model("qwen2"), metadata={"qwen2.attention.sliding_window": 16})
    with caplog.at_level(logging.WARNING):
        config = open_checkpoint(path, load_format="dummy").config
    assert config.sliding_window is None and "qwen2.attention.sliding_window" in caplog.text


ROPE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({"type": "none", "factor": 4.0}, {"rope_type": "default"}),
    "linear": ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "linear without a type": ({"factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
    "linear factor 1": ({"type": "linear", "factor": 1.0}, {"rope_type": "default"}),
    "yarn": (
        {"type": "yarn", "factor": 4.0, "original_context_length": 32},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "yarn with betas": (
        {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
    ),
    "yarn with attention factor": (
        {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_attn_factor": 0.5},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "attention_factor": 0.5 * (1 + 0.1 * np.log(4.0)),
        },
    ),
}


@pytest.mark.parametrize("case", ROPE)
def test_rope_scaling(case: str, open_gguf: Open) -> None:
    fields, expected = ROPE[case]
    metadata = {f"llama.rope.scaling.{key}": value for key, value in fields.items()} | {"llama.rope.freq_base": 5e5}
    assert open_gguf(metadata).config.rope_parameters == pytest.approx({**expected, "rope_theta": 5e5})


def test_rope_factors_are_handed_over_and_are_no_weight(open_gguf: Open) -> None:
    factors = np.array([1, 2, 4, 8], np.float32)
    checkpoint = open_gguf(extra={"rope_freqs.weight": factors})
    assert checkpoint.rope_freq_factors is not None and checkpoint.rope_freq_factors.tolist() == [1, 2, 4, 8]
    assert checkpoint.weights is not None and "rope_freqs.weight" not in checkpoint.weights.names()
    assert open_gguf(name="plain.gguf").rope_freq_factors is None


def test_settings_of_the_answer(open_gguf: Open) -> None:
    checkpoint = open_gguf({
        "tokenizer.chat_template": "{{ messages }} ü",
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 40,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 0xFFFFFFFF,
    })  # fmt: skip
    assert checkpoint.chat_template == "{{ messages }} ü"
    assert checkpoint.default_sampling == {"temperature": 0.5, "top_k": 40}
    assert checkpoint.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    assert checkpoint.bos_token_id == 1


def test_end_tokens_named_and_well_known(open_gguf: Open) -> None:
    assert open_gguf().eos_token_ids == (2, 0)  # <|im_end|> is named, <|endoftext|> is well known
    assert open_gguf({"tokenizer.ggml.eot_token_id": 7}, name="eot.gguf").eos_token_ids == (2, 7, 0)


def test_skipping_the_tokenizer_keeps_the_end_tokens(make_model: Any, write_gguf: Any) -> None:
    path = write_gguf(make_model())
    checkpoint = open_checkpoint(path, load_format="dummy", skip_tokenizer=True)
    assert checkpoint.tokenizer_json is None and checkpoint.weights is None and checkpoint.eos_token_ids == (2, 0)


def test_a_folder_that_holds_one_file(make_model: Any, write_gguf: Any, tmp_path: Path) -> None:
    folder = tmp_path / "my модели"
    folder.mkdir()
    path = write_gguf(make_model()).rename(folder / "Model.GGUF")
    assert open_checkpoint(folder, load_format="dummy").path == path
    (folder / "other.gguf").write_bytes(b"")
    with pytest.raises(UnsupportedCheckpoint, match=r"Model\.GGUF, other\.gguf"):
        open_checkpoint(folder)


REQUIRED = [
    "llama.context_length",
    "llama.embedding_length",
    "llama.block_count",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.layer_norm_rms_epsilon",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_field_is_named(key: str, open_gguf: Open) -> None:
    with pytest.raises(DamagedCheckpoint, match=rf"model\.gguf lacks the metadata key '{key}'"):
        open_gguf({key: None})


ODD: dict[str, Any] = {
    "llama.block_count": "two",
    "llama.context_length": 0,
    "llama.embedding_length": 32.5,
    "llama.attention.layer_norm_rms_epsilon": "small",
    "llama.rope.freq_base": True,
    "tokenizer.ggml.tokens": "a b",
    "tokenizer.ggml.token_type": [1, 2],
    "tokenizer.ggml.bos_token_id": 320,
    "tokenizer.ggml.add_bos_token": "yes",
    "tokenizer.chat_template": 1,
    "llama.attention.head_count_kv": [2, 1],
}


@pytest.mark.parametrize("key", ODD)
def test_odd_field_is_named(key: str, open_gguf: Open) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_gguf({key: ODD[key]})
    assert key in str(caught.value) and "model.gguf" in str(caught.value)


FOREIGN: dict[str, Any] = {
    "llama.expert_count": 8,
    "llama.logit_scale": 0.5,
    "llama.rope.scaling.type": "longrope",
    "llama.rope.dimension_count": 4,
    "llama.attention.value_length": 4,
    "split.count": 3,
}


@pytest.mark.parametrize("key", FOREIGN)
def test_field_that_changes_the_arithmetic_is_refused(key: str, open_gguf: Open) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        open_gguf({key: FOREIGN[key]})
    assert key in str(caught.value)


def test_equal_entries_for_each_layer_count_as_one(open_gguf: Open) -> None:
    assert open_gguf({"llama.attention.head_count_kv": [2, 2]}).config.num_key_value_heads == 2


def test_other_architectures_are_refused_by_name(make_model: Any, write_gguf: Any) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"'gemma3'.*Supported: llama, qwen2, qwen3"):
        open_checkpoint(write_gguf(make_model(), arch="gemma3"))


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_exps.weight", "blk.7.attn_q.weight", "blk.0.attn_q.scale", "v.patch"])
def test_tensor_without_a_place_is_named(name: str, open_gguf: Open) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=f"'{name}'"):
        open_gguf(extra={name: np.zeros((2, 2), np.float32)})


def test_more_tokens_than_embedding_rows(open_gguf: Open) -> None:
    with pytest.raises(DamagedCheckpoint, match=r"321 entries, the embedding only 320 rows"):
        open_gguf({"tokenizer.ggml.tokens": [str(index) for index in range(321)], "tokenizer.ggml.token_type": None})


def test_heads_that_do_not_fit_the_rows(open_gguf: Open) -> None:
    with pytest.raises(DamagedCheckpoint, match=r"attn_k\.weight' has 16 rows, 4 heads"):
        open_gguf({"llama.attention.head_count_kv": 4})
