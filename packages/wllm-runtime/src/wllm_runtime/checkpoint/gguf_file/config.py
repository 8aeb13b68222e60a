"""The model configuration of a GGUF file.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Whatever would change the arithmetic and is not
understood is refused by name. Every size comes from the file, none from what a family means in silence.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.gguf_file.fields import Fields
from wllm_runtime.checkpoint.gguf_file.header import TensorInfo
from wllm_runtime.checkpoint.model_config import ModelConfig

logger = logging.getLogger(__name__)

ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Any of them makes a "llama" file something other than a plain decoder.
_FOREIGN = (
    "expert_count",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "attention.scale",
    "attention.clamp_kqv",
)


def build_config(fields: Fields, tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    """The configuration; raises a `CheckpointError` that names the key, or the tensor, that is missing or odd."""
    arch = fields.text("general.architecture")
    if arch is None:
        raise fields.missing("general.architecture")
    if arch not in ARCHITECTURES:
        raise UnsupportedCheckpoint(
            f"{fields.path} holds the architecture {arch!r} (general.architecture), which wLLM does not run from GGUF. "
            f"Supported: {', '.join(ARCHITECTURES)} (Mistral files are 'llama')."
        )
    for key in _FOREIGN:
        value = fields.number(f"{arch}.{key}")
        if value:
            raise UnsupportedCheckpoint(
                f"{fields.path}: {arch}.{key} is {value}, which wLLM does not run. Use a model without it."
            )
    split = fields.integer("split.count")
    if split and split > 1:
        raise UnsupportedCheckpoint(
            f"{fields.path} is one of {split} parts (split.count). Join them first, for example with "
            "`llama-gguf-split --merge`."
        )
    hidden = fields.required_integer(f"{arch}.embedding_length")
    heads = fields.required_integer(f"{arch}.attention.head_count")
    epsilon = fields.number(f"{arch}.attention.layer_norm_rms_epsilon")
    if epsilon is None:
        raise fields.missing(f"{arch}.attention.layer_norm_rms_epsilon")
    window = _window(fields, arch)
    vocab_size = _vocab_size(fields, tensors, hidden)
    values: dict[str, object] = {
        "hidden_size": hidden,
        "num_hidden_layers": fields.required_integer(f"{arch}.block_count"),
        "intermediate_size": fields.required_integer(f"{arch}.feed_forward_length"),
        "max_position_embeddings": fields.required_integer(f"{arch}.context_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer(f"{arch}.attention.head_count_kv") or heads,
        "head_dim": _head_dim(fields, arch, hidden, heads),
        "rms_norm_eps": epsilon,
        "vocab_size": vocab_size,
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": _rope_parameters(fields, arch),
        "hidden_act": "silu",
        "bos_token_id": fields.token_id("tokenizer.ggml.bos_token_id", vocab_size),
        "eos_token_id": fields.token_id("tokenizer.ggml.eos_token_id", vocab_size),
    }
    if arch in ("llama", "qwen3"):
        values["attention_bias"] = "blk.0.attn_q.bias" in tensors
    if arch == "llama" and not window:
        values["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    # Files of Mistral say "llama"; only the window tells them apart, and a Llama has none.
    family = "mistral" if window else arch
    try:
        return ModelConfig.from_values(family, values | {"sliding_window": window})
    except ValueError as error:
        raise DamagedCheckpoint(f"{fields.path} describes no model: {error}. Use another file.") from error


def _window(fields: Fields, arch: str) -> int | None:
    key = f"{arch}.attention.sliding_window"
    window = fields.integer(key)
    if not window or arch == "llama":
        return window
    # Qwen's configurations give a window and switch it off; the switch does not reach GGUF files.
    logger.warning("%s: %s %d is not used: the architecture attends to everything.", fields.path, key, window)
    return None


def _head_dim(fields: Fields, arch: str, hidden: int, heads: int) -> int:
    key_length = fields.integer(f"{arch}.attention.key_length")
    if key_length is None and hidden % heads:
        raise DamagedCheckpoint(
            f"{fields.path}: {arch}.embedding_length {hidden} is no multiple of {arch}.attention.head_count {heads}, "
            f"and {arch}.attention.key_length is missing. Use a file made by a current converter."
        )
    head_dim = key_length or hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        value = fields.integer(f"{arch}.{key}")
        if value is not None and value != head_dim:
            raise UnsupportedCheckpoint(
                f"{fields.path}: {arch}.{key} is {value} while a head has {head_dim} values, which wLLM does not run. "
                "Use another model."
            )
    return head_dim


def _vocab_size(fields: Fields, tensors: Mapping[str, TensorInfo], hidden: int) -> int:
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        shape = "nowhere" if embedding is None else list(embedding.shape)
        raise DamagedCheckpoint(
            f"{fields.path}: the tensor 'token_embd.weight' must be [vocabulary, {hidden}], and is {shape}. "
            "Use a whole model file."
        )
    return embedding.shape[0]


def _rope_parameters(fields: Fields, arch: str) -> dict[str, object]:
    prefix = f"{arch}.rope"
    parameters: dict[str, object] = {"rope_type": "default", "rope_theta": fields.number(f"{prefix}.freq_base") or 1e4}
    factor = fields.number(f"{prefix}.scaling.factor") or fields.number(f"{prefix}.scale_linear")
    # Files from before rope.scaling.type existed only ever meant linear scaling.
    kind = fields.text(f"{prefix}.scaling.type") or "linear"
    if kind == "none" or (kind == "linear" and factor in (None, 1.0)):
        return parameters
    if kind not in ("linear", "yarn") or not factor:
        raise UnsupportedCheckpoint(
            f"{fields.path}: {prefix}.scaling.type {kind!r} with factor {factor} is a rotary scaling that wLLM does "
            "not read from GGUF. Supported: none, linear, yarn."
        )
    parameters |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        parameters |= _yarn(fields, prefix, factor)
    return parameters


def _yarn(fields: Fields, prefix: str, factor: float) -> dict[str, object]:
    parameters: dict[str, object] = {}
    extrapolation = fields.number(f"{prefix}.scaling.yarn_ext_factor")
    if extrapolation not in (None, 1.0):
        raise UnsupportedCheckpoint(
            f"{fields.path}: {prefix}.scaling.yarn_ext_factor is {extrapolation}; wLLM runs 1.0 only. Use another file."
        )
    original = fields.integer(f"{prefix}.scaling.original_context_length")
    if original:
        parameters["original_max_position_embeddings"] = original
    for name in ("beta_fast", "beta_slow"):
        value = fields.number(f"{prefix}.scaling.yarn_{name}")
        if value is not None:
            parameters[name] = value
    # GGUF's factor multiplies YaRN's own attention scale; Hugging Face's replaces it.
    scale = fields.number(f"{prefix}.scaling.yarn_attn_factor") or fields.number(f"{prefix}.scaling.attn_factor")
    if scale not in (None, 1.0):
        parameters["attention_factor"] = scale * (1.0 + 0.1 * math.log(factor))
    return parameters
