"""A GGUF file, opened: configuration, tokenizer and weights from one file."""

from __future__ import annotations

from pathlib import Path

import torch

from wllm_runtime.checkpoint.errors import DamagedCheckpoint
from wllm_runtime.checkpoint.gguf_file.config import build_config
from wllm_runtime.checkpoint.gguf_file.fields import Fields
from wllm_runtime.checkpoint.gguf_file.header import Header, read_header
from wllm_runtime.checkpoint.gguf_file.names import ROPE_FACTORS, to_hugging_face
from wllm_runtime.checkpoint.gguf_file.tensors import GgufReader
from wllm_runtime.checkpoint.gguf_file.tokenizer import build_tokenizer_json
from wllm_runtime.checkpoint.gguf_file.vocabulary import end_token_ids, read_vocabulary
from wllm_runtime.checkpoint.interface import Checkpoint, LoadFormat
from wllm_runtime.checkpoint.model_config import ModelConfig

_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def open_gguf(path: Path, *, load_format: LoadFormat, skip_tokenizer: bool) -> Checkpoint:
    """Opens the file; raises a `CheckpointError` that names the file and the field or tensor at fault."""
    header = read_header(path)
    fields = Fields(header)
    config = build_config(fields, header.tensors)
    vocabulary = read_vocabulary(fields, config.vocab_size)
    end_ids = end_token_ids(fields, vocabulary)
    return Checkpoint(
        path=path,
        format="gguf",
        config=config,
        tokenizer_json=None if skip_tokenizer else build_tokenizer_json(fields, vocabulary, end_ids),
        chat_template=fields.text("tokenizer.chat_template"),
        special_tokens=vocabulary.special_texts(),
        bos_token_id=vocabulary.special.get("bos_token"),
        eos_token_ids=end_ids,
        default_sampling={name: value for name, key in _SAMPLING.items() if (value := fields.number(key)) is not None},
        rope_freq_factors=_rope_factors(header, config),
        # Last: nothing may fail once the file is held open.
        weights=None if load_format == "dummy" else _open_weights(header, config),
    )


def _open_weights(header: Header, config: ModelConfig) -> GgufReader:
    tensors = to_hugging_face(header.path, header.tensors, config.num_hidden_layers)
    interleaved: dict[str, int] = {}
    if header.metadata["general.architecture"] == "llama":
        # Only this architecture is stored for interleaved rotary pairs.
        for name in tensors:
            if ".q_proj." in name:
                interleaved[name] = config.num_attention_heads
            elif ".k_proj." in name:
                interleaved[name] = config.num_key_value_heads
    for name, heads in interleaved.items():
        rows = tensors[name].shape[0] if tensors[name].shape else 0
        if rows != heads * config.head_dim:
            raise DamagedCheckpoint(
                f"{header.path}: the tensor {tensors[name].name!r} has {rows} rows, {heads} heads of "
                f"{config.head_dim} values need {heads * config.head_dim}. Use a file made by a current converter."
            )
    return GgufReader(header.path, tensors, interleaved)


def _rope_factors(header: Header, config: ModelConfig) -> torch.Tensor | None:
    info = header.tensors.get(ROPE_FACTORS)
    if info is None:
        return None
    if info.shape != (config.head_dim // 2,):
        raise DamagedCheckpoint(
            f"{header.path}: the tensor {ROPE_FACTORS!r} has the shape {list(info.shape)}, "
            f"[{config.head_dim // 2}] is needed. Use a file made by a current converter."
        )
    reader = GgufReader(header.path, {ROPE_FACTORS: info}, {})
    try:
        return reader.read(ROPE_FACTORS).float()
    finally:
        reader.close()
