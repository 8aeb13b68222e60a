"""From a checkpoint to a decoder that can run: created on its device, filled, packed.

Owns the order of these and the progress bar. Reads no file itself: the checkpoint's reader does, and is closed here.
Called by `create_engine`.
"""

from __future__ import annotations

import dataclasses
import logging

import torch

from wllm_runtime.checkpoint import Checkpoint, WeightReader
from wllm_runtime.models import weights
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.progress import progress_bar

_LOG = logging.getLogger(__name__)


def decoder_config(checkpoint: Checkpoint) -> DecoderConfig:
    """What `checkpoint` asks for; raises `UnsupportedModel`, or `DamagedCheckpoint` where its head cannot be read."""
    config = DecoderConfig.from_pretrained(checkpoint.config)
    factors = checkpoint.rope_freq_factors
    if factors is not None:
        config = dataclasses.replace(
            config, rope=dataclasses.replace(config.rope, freq_factors=tuple(factors.tolist()))
        )
    if config.tie_word_embeddings and checkpoint.weights is not None and _has_own_head(checkpoint.weights):
        # Fine-tuning may untie a head and forget to say so. transformers, too, then believes the weights.
        _LOG.warning(
            "%s says that the output head is tied to the embedding, and stores a head that differs from it. The stored "
            "head is used; set tie_word_embeddings to false in its config.json to say so.",
            checkpoint.path,
        )
        config = dataclasses.replace(config, tie_word_embeddings=False)
    return config


def build_model(
    config: DecoderConfig, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, seed: int
) -> Decoder:
    """The model of `checkpoint` on `device` in `dtype`; random weights from `seed` where the checkpoint has none.

    Raises `WeightsError` where the tensors do not fit the config, `DamagedCheckpoint` where they cannot be read.
    """
    model = _uninitialised(config, device, dtype)
    if checkpoint.weights is None:
        weights.fill_random(model, seed)
    else:
        _fill(model, checkpoint.weights)
    model.pack()
    return model.eval()


def weight_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes that the parameters of such a model take in `dtype`; allocates nothing."""
    return sum(parameter.nbytes for parameter in _uninitialised(config, torch.device("meta"), dtype).parameters())


def _has_own_head(reader: WeightReader) -> bool:
    if not {weights.HEAD, weights.EMBEDDING} <= set(reader.names()):
        return False
    if reader.shape(weights.HEAD) != reader.shape(weights.EMBEDDING):
        return True
    head, embedding = reader.read(weights.HEAD), reader.read(weights.EMBEDDING)
    return head.dtype != embedding.dtype or not torch.equal(head, embedding)


def _uninitialised(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> Decoder:
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Decoder(config)
    finally:
        torch.set_default_dtype(default_dtype)


def _fill(model: Decoder, reader: WeightReader) -> None:
    try:
        with progress_bar("loading weights", total=reader.num_bytes, unit="B", unit_scale=True) as bar:
            weights.load(model, reader, bar.update)
    finally:
        reader.close()
