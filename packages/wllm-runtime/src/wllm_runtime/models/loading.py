"""From a checkpoint to a decoder that can run: created on its device, filled, packed.

Owns the order of these and the progress bar. Reads no file itself: the checkpoint's reader does, and is closed here.
Called by `create_engine`.
"""

from __future__ import annotations

import torch
from tqdm import tqdm

from wllm_runtime.checkpoint import Checkpoint, WeightReader
from wllm_runtime.models import weights
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.models.decoder_config import DecoderConfig


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
        # disable=None: a bar on a terminal, nothing in a log file.
        with tqdm(total=reader.num_bytes, unit="B", unit_scale=True, desc="loading weights", disable=None) as bar:
            weights.load(model, reader, bar.update)
    finally:
        reader.close()
