"""What an engine needs beside its KV cache is found by running it, and its sizes reach the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
import torch

from wllm_runtime import EngineConfig
from wllm_runtime.assembly import Assembly
from wllm_runtime.checkpoint import open_checkpoint
from wllm_runtime.gpu_budget import Needs
from wllm_runtime.gpu_memory import GpuMemory
from wllm_runtime.models.decoder_config import DecoderConfig
from wllm_runtime.models.loading import build_model
from wllm_runtime.testing import save_tiny_llama

CPU = torch.device("cpu")
WEIGHTS, TABLES, PEAK, WORKSPACE, CUDA = 1000, 200, 50, 20, 7


class Gpu:
    """Answers as a GPU would, and notes that the largest step has run."""

    def __init__(self) -> None:
        self._held = iter((WEIGHTS, WEIGHTS + TABLES, WEIGHTS + TABLES + WORKSPACE))
        self.steps = 0

    def held(self) -> int:
        return next(self._held)

    def peak_of(self, step: Callable[[], None]) -> int:
        step()
        self.steps += 1
        return PEAK

    def outside_of_torch(self) -> int:
        return CUDA

    @contextmanager
    def out_of_memory_means(self, what: str) -> Iterator[None]:
        yield


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_needs_are_found_with_the_largest_step(tmp_path: Path, enforce_eager: bool) -> None:
    save_tiny_llama(tmp_path)
    checkpoint = open_checkpoint(tmp_path, skip_tokenizer=True)
    decoder_config = DecoderConfig.from_pretrained(checkpoint.config)
    assembly = Assembly(
        config=EngineConfig(model=str(tmp_path), enforce_eager=enforce_eager),
        checkpoint=checkpoint,
        model=build_model(decoder_config, checkpoint, CPU, torch.float32, 0),
        device=CPU,
        dtype=torch.float32,
        kv_dtype=torch.int8,
        max_num_seqs=4,
        max_num_batched_tokens=100,
        spin=False,
        max_step_ms=None,
    )
    gpu = Gpu()
    needs = assembly.needs(cast(GpuMemory, gpu), longest=128)
    assert gpu.steps == 1
    # Counts and flags of 96 tokens for four requests. Graphs: 3 + 2 buckets of two layers, half of the activations,
    # and the workspace of the stream that they are captured on.
    activations = PEAK - WORKSPACE
    graphs = 0 if enforce_eager else activations // 2 + 5 * 2 * (160 << 10) + WORKSPACE
    assert needs == Needs(WEIGHTS, activations, TABLES + 4 * 96 * 10, graphs, CUDA + WORKSPACE)
    assert assembly.bytes_per_token == 2 * 2 * 2 * (8 + 2)
