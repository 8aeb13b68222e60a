"""Tiny models on disk: directories written by transformers, and GGUF files of the same weights written by gguf."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

CORPUS = [
    "What is the capital of France? The capital of France is Paris.",
    "  two spaces, don't we're I'LL 12345 6.7 1999-12-31",
    "ÄÖ äöü ß 龜 日本語 한국어 🫠 👩‍👩‍👧 naïve café",
    "def f(x):\n    return x  # comment\n\n\nclass A:\n\tpass\n",
    "the quick brown fox jumps over the lazy dog " * 3,
]

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

ModelMaker = Callable[..., PreTrainedModel]
GgufWriter = Callable[..., Path]


@pytest.fixture
def make_model() -> ModelMaker:
    """Makes a tiny random model of a family; keyword arguments override its configuration."""

    def make(model_type: str = "llama", **overrides: Any) -> PreTrainedModel:
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **{**SIZES, **overrides})
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():  # biases and norms too must be told apart
                parameter.normal_()
        return model

    return make


@pytest.fixture
def byte_level_tokenizer() -> Tokenizer:
    """A trained byte-level BPE tokenizer of 320 tokens, split as SmolLM does, with three control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture
def model_dir(tmp_path: Path, make_model: ModelMaker, byte_level_tokenizer: Tokenizer) -> Path:
    """A directory with a tiny llama model and a tokenizer, in a folder whose name has spaces and Cyrillic letters."""
    directory = tmp_path / "Загрузки Željko" / "my model"
    make_model().save_pretrained(directory)
    byte_level_tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def write_gguf(tmp_path: Path, byte_level_tokenizer: Tokenizer) -> GgufWriter:
    """Writes a model as GGUF.

    `metadata` adds keys, overrides them, or (value None) leaves them out; `quantize` gives the type of a tensor by its
    GGUF name; `extra` adds tensors.
    """

    def write(
        model: PreTrainedModel,
        *,
        arch: str | None = None,
        metadata: dict[str, Any] | None = None,
        quantize: Callable[[str], gguf.GGMLQuantizationType] = lambda _: gguf.GGMLQuantizationType.F32,
        extra: dict[str, np.ndarray] | None = None,
        name: str = "model.gguf",
    ) -> Path:
        config = model.config
        arch = arch or {"mistral": "llama"}.get(config.model_type, config.model_type)
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, arch)
        fields = _model_fields(config, arch) | byte_level_fields(byte_level_tokenizer) | (metadata or {})
        for key, value in fields.items():
            if value is not None:
                _add_field(writer, key, value)
        tensors = {_gguf_name(key): (key, value) for key, value in model.state_dict().items()}
        if config.tie_word_embeddings:
            tensors.pop("output.weight", None)
        for gguf_name, (key, value) in tensors.items():
            data = value.float().numpy()
            if arch == "llama" and (".q_proj." in key or ".k_proj." in key):
                heads = config.num_attention_heads if ".q_proj." in key else config.num_key_value_heads
                data = _interleave(data, heads)
            kind = quantize(gguf_name) if data.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(gguf_name, gguf.quants.quantize(np.ascontiguousarray(data), kind), raw_dtype=kind)
        for gguf_name, data in (extra or {}).items():
            writer.add_tensor(gguf_name, data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def tokenizer_fields() -> Callable[..., dict[str, Any]]:
    """Turns a byte-level tokenizer into GGUF metadata."""
    return byte_level_fields


def byte_level_fields(tokenizer: Tokenizer, pre: str | None = "smollm") -> dict[str, Any]:
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _model_fields(config: PretrainedConfig, arch: str) -> dict[str, Any]:
    return {
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.attention.key_length": getattr(config, "head_dim", None),
        f"{arch}.rope.freq_base": config.rope_parameters["rope_theta"],
    }


def _add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
        writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])


_PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    part, kind = name.rsplit(".", 1)
    if not part.startswith("model.layers."):
        return f"{_PARTS[part]}.{kind}"
    layer, part = part.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_PARTS[part]}.{kind}"


def _interleave(data: np.ndarray, heads: int) -> np.ndarray:
    """Rows (first half, second half) of each head to (pair, pair, ..): what converters do to llama's q and k."""
    order = np.arange(len(data)).reshape(heads, 2, -1).swapaxes(1, 2).ravel()
    return data[order]
