"""A built model holds what its files hold, once; a random one is made where it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from wllm_runtime import WeightsError
from wllm_runtime.checkpoint import open_checkpoint
from wllm_runtime.models.decoder import Decoder
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.models.loading import build_model, weight_bytes
from wllm_runtime.models.weights import weight_targets
from wllm_runtime.testing import save_tiny_llama

CPU = torch.device("cpu")
WIDE: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 4096, "num_attention_heads": 8}


def build(folder: Path, device: torch.device = CPU, dtype: torch.dtype = torch.float32, **options: Any) -> Decoder:
    checkpoint = open_checkpoint(folder, skip_tokenizer=True, **options)
    return build_model(DecoderConfig.from_pretrained(checkpoint.config), checkpoint, device, dtype, 7)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "pack", lambda self: None)


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_holds_its_tensor(dtype: torch.dtype, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, attention_bias=True)
    model = build(tmp_path, dtype=dtype)
    stored = load_file(tmp_path / "model.safetensors")
    targets = dict(weight_targets(model))
    assert targets.keys() == stored.keys()
    for name, target in targets.items():
        assert torch.equal(target, stored[name].to(dtype))
    assert sum(target.numel() for target in targets.values()) == sum(value.numel() for value in model.parameters())


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_known_before_anything_is_loaded(dtype: torch.dtype, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path, attention_bias=True)
    model = build(tmp_path, dtype=dtype)
    assert weight_bytes(model.config, dtype) == sum(parameter.nbytes for parameter in model.parameters()) > 0


def test_reader_is_closed_when_the_weights_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_llama(tmp_path)
    checkpoint = open_checkpoint(tmp_path, skip_tokenizer=True)
    assert checkpoint.weights is not None
    closed: list[bool] = []
    monkeypatch.setattr(type(checkpoint.weights), "close", lambda self: closed.append(True))
    config = DecoderConfig.from_pretrained(save_tiny_llama(tmp_path / "other", vocab_size=64).config)
    with pytest.raises(WeightsError, match=r"shape \(96, 32\).*\(64, 32\)"):
        build_model(config, checkpoint, CPU, torch.float32, 0)
    assert closed == [True]


@pytest.mark.gpu
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_weights_take_their_own_size_and_no_more(load_format: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    save_tiny_llama(tmp_path, **WIDE)
    weights = open_checkpoint(tmp_path, skip_tokenizer=True).weights
    assert weights is not None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model = build(tmp_path, torch.device("cuda"), load_format=load_format)
    assert model.embedding.is_cuda
    # The allocator rounds each tensor up to 512 bytes.
    allowance = 512 * len(weights.names())
    assert torch.cuda.max_memory_allocated() - before <= weights.num_bytes + allowance
