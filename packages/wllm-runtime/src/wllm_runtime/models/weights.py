"""Fill a decoder's parameters from a checkpoint: names, fused parameters, and nothing missing or left over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from wllm_runtime.checkpoint import WeightReader
from wllm_runtime.errors import WeightsError
from wllm_runtime.models.decoder import Decoder, DecoderLayer

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Old checkpoints store the rotation's frequencies, which are computed from the config.
_COMPUTED = (".rotary_emb.inv_freq",)
_MAX_NAMES_SHOWN = 5


def load(model: Decoder, reader: WeightReader, on_progress: Callable[[int], None]) -> None:
    """Read every tensor of `reader` into its place; `on_progress` gets the bytes that are done, piece by piece.

    Raises `WeightsError` for a missing, unknown or misshapen tensor, before any is read.
    """
    targets = dict(weight_targets(model))
    found: dict[str, torch.Tensor] = {}
    unknown: list[str] = []
    for name in reader.names():
        target = targets.pop(name, None)
        if target is not None:
            _check_shape(name, reader.shape(name), target)
            found[name] = target
        elif _is_redundant(name, model):
            on_progress(reader.nbytes(name))
        else:
            unknown.append(name)
    if unknown:
        raise WeightsError(
            f"the checkpoint holds {len(unknown)} tensors that a {model.config.architecture} model with this config "
            f"does not have: {_some(unknown)}. Its config.json may belong to another model"
        )
    if targets:
        hint = (
            "; the config says that the output head is not tied to the embedding (tie_word_embeddings: false)"
            if HEAD in targets
            else ""
        )
        raise WeightsError(
            f"the checkpoint lacks {len(targets)} tensors: {_some(list(targets))}{hint}. Incomplete download?"
        )
    reader.read_into(found, on_progress)


def fill_random(model: Decoder, seed: int) -> None:
    """Give every parameter small random values, the same for the same seed (load_format "dummy")."""
    device = model.embedding.device
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)


def weight_targets(model: Decoder) -> Iterator[tuple[str, torch.Tensor]]:
    """Hugging Face tensor names with the view of our parameter that each fills."""
    yield EMBEDDING, model.embedding
    yield "model.norm.weight", model.norm.weight
    if model.head is not None:
        yield HEAD, model.head.weight
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, DecoderLayer)
        for name, view in _layer_targets(layer):
            yield f"model.layers.{index}.{name}", view


def _layer_targets(layer: DecoderLayer) -> Iterator[tuple[str, torch.Tensor]]:
    attention, mlp = layer.attention, layer.mlp
    q_size = attention.num_heads * attention.head_dim
    kv_size = attention.num_kv_heads * attention.head_dim
    yield "input_layernorm.weight", layer.input_norm.weight
    yield "post_attention_layernorm.weight", layer.mlp_norm.weight
    yield from _split("self_attn", ("q_proj", "k_proj", "v_proj"), (q_size, kv_size, kv_size), attention.qkv)
    yield from _split("self_attn", ("o_proj",), (attention.output.weight.shape[0],), attention.output)
    if attention.q_norm is not None and attention.k_norm is not None:
        yield "self_attn.q_norm.weight", attention.q_norm
        yield "self_attn.k_norm.weight", attention.k_norm
    half = mlp.gate_up.weight.shape[0] // 2
    yield from _split("mlp", ("gate_proj", "up_proj"), (half, half), mlp.gate_up)
    yield from _split("mlp", ("down_proj",), (mlp.down.weight.shape[0],), mlp.down)


def _split(
    parent: str, names: tuple[str, ...], sizes: tuple[int, ...], linear: torch.nn.Module
) -> Iterator[tuple[str, torch.Tensor]]:
    for kind in ("weight", "bias"):
        parameter = getattr(linear, kind)
        if parameter is not None:
            for name, view in zip(names, parameter.split(sizes), strict=True):
                yield f"{parent}.{name}.{kind}", view


def _check_shape(name: str, shape: tuple[int, ...], target: torch.Tensor) -> None:
    if shape != target.shape:
        raise WeightsError(
            f"tensor {name} has the shape {shape}, the config says {tuple(target.shape)}; "
            "the config.json may belong to another model"
        )


def _is_redundant(name: str, model: Decoder) -> bool:
    # A tied model may store its head as well, the same as its embedding: fine-tuning tools do that.
    return name.endswith(_COMPUTED) or (name == HEAD and model.config.tie_word_embeddings)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES_SHOWN])
    return shown if len(names) <= _MAX_NAMES_SHOWN else f"{shown}, ..."
