"""The KV cache: its shapes, its bytes, and that a layer is a view of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wllm_runtime.kv_cache import KVCache
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.testing import save_tiny_llama

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path: Path) -> DecoderConfig:
    return DecoderConfig.from_pretrained(save_tiny_llama(tmp_path).config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_bytes_are_what_the_plan_counts(config: DecoderConfig, dtype: torch.dtype) -> None:
    cache = KVCache.allocate(config, 5, 16, dtype, CPU)
    assert cache.data.shape == (2, 5, 2, 2, 16, 8)
    assert (cache.num_blocks, cache.block_size) == (5, 16)
    assert cache.nbytes == 5 * 16 * KVCache.bytes_per_token(config, dtype)


def test_int8_alone_has_scales(config: DecoderConfig) -> None:
    cache = KVCache.allocate(config, 5, 16, torch.int8, CPU)
    assert cache.scales is not None
    assert (cache.scales.shape, cache.scales.dtype) == ((2, 5, 2, 2, 16), torch.float16)
    assert KVCache.allocate(config, 5, 16, torch.float8_e4m3fn, CPU).layer_scales == (None, None)


def test_layers_are_views(config: DecoderConfig) -> None:
    cache = KVCache.allocate(config, 5, 16, torch.int8, CPU)
    cache.layers[1].fill_(7)
    cache.layer_scales[1].fill_(2.0)  # type: ignore[union-attr]
    assert cache.scales is not None
    assert bool((cache.data[1] == 7).all()) and bool((cache.scales[1] == 2.0).all())
