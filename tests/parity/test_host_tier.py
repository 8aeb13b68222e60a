"""Prefixes that come back from the host's memory equal transformers in float32, preemption included."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from parity.rule import Parity
from parity.tiny_models import TINY_MODELS, VOCAB_SIZE

from wllm import LLM, SamplingParams
from wllm_sched import EngineStats

GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=5, ignore_eos=True)
# A window, biases on q and k, RoPE that depends on the length.
FAMILIES = ("llama", "mistral-window", "qwen3", "llama-dynamic")


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, TINY_MODELS[request.param].save(folder)


def run(tiny: tuple[Path, Any], prompts: list[list[int]], rounds: int, **settings: Any) -> EngineStats:
    folder, reference = tiny
    with LLM(
        str(folder), dtype="float32", skip_tokenizer_init=True, block_size=8, kv_offload_gib=0.01, **settings
    ) as llm:
        for _ in range(rounds):
            Parity(reference).check_all(llm.generate(prompts, GREEDY, use_tqdm=False))
        stats = llm.stats()
    print(f"{stats.host_saves_total} saves, {stats.host_loads_total} loads, {stats.preemptions_total} preemptions")
    assert stats.host_saves_total > 0 and stats.host_loads_total > 0
    assert stats.num_free_blocks == stats.num_blocks
    return stats


def prompts_of(lengths: list[int]) -> list[list[int]]:
    numbers = random.Random(0)
    return [[numbers.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_prompts_again_after_they_were_evicted(tiny: tuple[Path, Any], depth: int) -> None:
    prompts = prompts_of([90, 70, 80, 61])
    stats = run(tiny, prompts, 3, num_kv_blocks=18, pipeline_depth=depth)
    # Two of three rounds find almost all of their prompts, which do not fit into the device's blocks together.
    assert stats.host_loads_total * 8 > sum(map(len, prompts))
    assert stats.prefix_cache_hits_total > 1.8 * sum(len(prompt) - 8 for prompt in prompts)


def test_preempted_requests_come_back_from_the_host(tiny: tuple[Path, Any]) -> None:
    stats = run(tiny, prompts_of([20, 30, 25, 28, 22, 35]), 2, num_kv_blocks=18)
    assert stats.preemptions_total > 0


def test_chunks_and_a_shared_beginning(tiny: tuple[Path, Any]) -> None:
    (beginning,) = prompts_of([40])
    prompts = [beginning + tail for tail in prompts_of([9, 17, 30, 5])]
    stats = run(tiny, prompts, 3, num_kv_blocks=14, max_num_batched_tokens=16, max_num_seqs=4)
    assert stats.prefill_chunks_total > 3 * len(prompts)
