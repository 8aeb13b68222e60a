"""GGUF tensor names and their Hugging Face names, for the llama, qwen2 and qwen3 architectures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from wllm_runtime.checkpoint.errors import UnsupportedCheckpoint
from wllm_runtime.checkpoint.gguf_file.header import TensorInfo

ROPE_FACTORS = "rope_freqs.weight"

_GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<kind>weight|bias)")
# Tables that old converters stored and every engine computes itself.
_DERIVED = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")


def to_hugging_face(path: Path, tensors: Mapping[str, TensorInfo], num_layers: int) -> dict[str, TensorInfo]:
    """The weights by Hugging Face name, in file order; raises `UnsupportedCheckpoint` for a tensor we cannot place."""
    mapped: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        if name == ROPE_FACTORS or _DERIVED.fullmatch(name):
            continue
        match = _LAYER_NAME.fullmatch(name)
        if name in _GLOBAL:
            mapped[_GLOBAL[name]] = info
        elif match and match["part"] in _LAYER and int(match["layer"]) < num_layers:
            mapped[f"model.layers.{int(match['layer'])}.{_LAYER[match['part']]}.{match['kind']}"] = info
        else:
            raise UnsupportedCheckpoint(
                f"{path} holds the tensor {name!r} {list(info.shape)}, which has no place in a plain decoder of "
                f"{num_layers} layers. wLLM does not run this variant; use another model."
            )
    return mapped
