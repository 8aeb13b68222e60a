"""Every family and option equals transformers in float32 in every mode; each mode shows that it happened."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from parity.rule import Parity
from parity.tiny_models import TINY_MODELS, VOCAB_SIZE

from wllm import LLM, SamplingParams
from wllm_kernels.device.kernel import launch_count
from wllm_sched import EngineStats

GREEDY = SamplingParams(temperature=0, max_tokens=24, logprobs=5, ignore_eos=True)


@pytest.fixture(scope="module", params=sorted(TINY_MODELS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, TINY_MODELS[request.param].save(folder)


def prompts_of(lengths: list[int], seed: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def run(
    tiny: tuple[str, Path, transformers.PreTrainedModel], prompts: list[list[int]], *, times: int = 1, **settings: Any
) -> EngineStats:
    _, folder, reference = tiny
    launched = launch_count()
    with LLM(str(folder), dtype="float32", skip_tokenizer_init=True, **settings) as llm:
        for _ in range(times):
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
            Parity(reference).check_all(outputs)
        if times > 1:
            assert all(output.num_cached_tokens > 0 for output in outputs)
        assert llm.model_info.device == "cpu" or launch_count() > launched
        return llm.stats()


def test_one_prompt(tiny: Any) -> None:
    run(tiny, prompts_of([17]))


def test_ragged_batch(tiny: Any) -> None:
    run(tiny, prompts_of([1, 5, 16, 33, 2, 48, 31, 15]))


def test_tiny_token_budget_cuts_prompts_into_chunks(tiny: Any) -> None:
    stats = run(tiny, prompts_of([40, 7, 65, 23]), max_num_batched_tokens=8, max_num_seqs=4)
    assert stats.prefill_chunks_total > 4 * 4


def test_same_prompts_again_hit_the_prefix_cache(tiny: Any) -> None:
    stats = run(tiny, prompts_of([40, 33, 65]), times=2)
    assert stats.prefix_cache_hits_total > 0


def test_few_blocks_force_preemption(tiny: Any) -> None:
    stats = run(tiny, prompts_of([20, 30, 25, 28, 22, 35]), num_kv_blocks=18, block_size=8)
    assert stats.preemptions_total > 0


def test_preemption_without_a_prefix_cache(tiny: Any) -> None:
    stats = run(
        tiny,
        prompts_of([20, 30, 25, 28]),
        num_kv_blocks=14,
        block_size=8,
        enable_prefix_caching=False,
        max_model_len=96,
    )
    assert stats.preemptions_total > 0


def test_long_contexts_go_beyond_window_and_original_context(tiny: Any) -> None:
    run(tiny, prompts_of([90, 60, 120]), max_num_batched_tokens=32, max_num_seqs=4)


@pytest.mark.parametrize("depth", [1, 2])
def test_steps_in_flight(tiny: Any, depth: int) -> None:
    stats = run(tiny, prompts_of([9, 21, 34]), pipeline_depth=depth)
    assert stats.max_in_flight_seen == depth
