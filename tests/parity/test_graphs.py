"""Steps that replay graphs equal transformers in float32: every bucket, padded and exact, decode and prefill.

On a GPU the graphs are CUDA's. Elsewhere a recording backend replays the same function over the same buffers, which
shows that padding changes nothing (I12) and that nothing but the buffers varies between steps.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.rule import Parity
from parity.tiny_models import TINY_MODELS, VOCAB_SIZE

from wllm import LLM, SamplingParams
from wllm_runtime import runner as runner_module
from wllm_runtime.testing import RecordedGraphs

GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=5, ignore_eos=True)
HAS_GPU = torch.cuda.is_available()
SIZES: dict[str, Any] = {"max_num_seqs": 12, "max_num_batched_tokens": 160}
# Prompts that run together: decode steps of 1 to 12 rows in buckets of 1, 2, 4, 8 and 12; prompts of 1 to 150 tokens in
# buckets of 64, 128 and 160.
WAVES = [[17], [3, 60], [5, 9, 70], [16] * 5, [8] * 9, [150], [100, 40, 20, 11]]
NUM_BUCKETS = 5 + 3


@pytest.fixture(scope="module", params=sorted(TINY_MODELS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, TINY_MODELS[request.param].save(folder)


def open_with_graphs(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[LLM, RecordedGraphs]:
    recorded = RecordedGraphs()
    if not HAS_GPU:
        monkeypatch.setattr(runner_module, "graph_backend", lambda _: recorded)
    llm = LLM(str(folder), dtype="float32", skip_tokenizer_init=True, **SIZES, **settings)
    if not HAS_GPU:
        # The engine captures where there is a GPU.
        llm._engine._model_runner.capture(lambda done, total: None)  # type: ignore[attr-defined]
        recorded.replays[:] = [0] * len(recorded.replays)
    return llm, recorded


def prompts_of(lengths: list[int], seed: int) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def test_every_bucket(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name, folder, reference = tiny
    llm, recorded = open_with_graphs(folder, monkeypatch)
    with llm:
        for seed, lengths in enumerate(WAVES):
            outputs = llm.generate(prompts_of(lengths, seed), GREEDY, use_tqdm=False)
            Parity(reference).check_all(outputs)
        stats = llm.stats()
    if name == "llama-dynamic":  # its rotation depends on lengths
        assert stats.graph_replays_total == 0
        return
    assert stats.graph_failures_total == 0
    assert stats.graph_replays_total > 0
    if not HAS_GPU:
        assert stats.eager_steps_total == 0
        assert len(recorded.replays) == NUM_BUCKETS and min(recorded.replays) > 0


def test_preemption(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name, folder, reference = tiny
    llm, _ = open_with_graphs(folder, monkeypatch, num_kv_blocks=18, block_size=8)
    longer = dataclasses.replace(GREEDY, max_tokens=24)
    with llm:
        outputs = llm.generate(prompts_of([20, 30, 25, 28, 22, 35], 0), longer, use_tqdm=False)
        Parity(reference).check_all(outputs)
        stats = llm.stats()
    assert stats.preemptions_total > 0
    assert (stats.graph_replays_total > 0) == (name != "llama-dynamic")


def test_without_graphs(tiny: Any) -> None:
    _, folder, reference = tiny
    with LLM(str(folder), dtype="float32", skip_tokenizer_init=True, enforce_eager=True, **SIZES) as llm:
        Parity(reference).check_all(llm.generate(prompts_of([17, 5], 1), GREEDY, use_tqdm=False))
        stats = llm.stats()
    assert stats.graph_replays_total == 0 and stats.eager_steps_total == stats.steps_total
