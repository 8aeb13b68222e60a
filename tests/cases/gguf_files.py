"""The odd model as a GGUF file, as converters write a SentencePiece tokenizer: tokens with scores, and no merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from cases.odd_model import CONTEXT, MERGES, VOCAB, VOCAB_SIZE
from safetensors.numpy import load_file

_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_SIZES = {
    "context_length": CONTEXT, "embedding_length": 32, "block_count": 2, "feed_forward_length": 48,
    "attention.head_count": 4, "attention.head_count_kv": 2,
}  # fmt: skip
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED, _BYTE = 1, 2, 3, 5, 6


def save_as_gguf(folder: Path, path: Path, **changed: str) -> None:
    """Write the model of `folder` to `path`; `changed` replaces text fields, with "_" for "."."""
    writer = gguf.GGUFWriter(path, changed.pop("general_architecture", "llama"))
    for name, value in _SIZES.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    texts = {"tokenizer.ggml.model": "llama"} | {name.replace("_", "."): text for name, text in changed.items()}
    for name, text in texts.items():
        writer.add_string(name, text)
    for name, values in _tokenizer().items():
        writer.add_array(f"tokenizer.ggml.{name}", values)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 1)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    for name, tensor in load_file(folder / "model.safetensors").items():
        part, layer = name.removesuffix(".weight"), ""
        if part.startswith("model.layers."):
            number, part = part.removeprefix("model.layers.").split(".", 1)
            layer = f"blk.{number}."
        writer.add_tensor(f"{layer}{_NAMES[part]}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tokenizer() -> dict[str, list[Any]]:
    ranks = {"".join(pair): rank for rank, pair in enumerate(MERGES)}
    kinds = {"<unk>": _UNKNOWN, "<s>": _CONTROL, "</s>": _CONTROL}
    padding = [f"[PAD{number}]" for number in range(len(VOCAB), VOCAB_SIZE)]
    return {
        "tokens": [*VOCAB, *padding],
        # Pairs join by the highest score, single letters have the lowest.
        "scores": [-float(ranks.get(token, 1000)) for token in [*VOCAB, *padding]],
        "token_type": [
            *(kinds.get(token, _BYTE if token.startswith("<0x") else _NORMAL) for token in VOCAB),
            *[_UNUSED] * len(padding),
        ],
    }
