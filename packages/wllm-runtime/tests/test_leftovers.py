"""What the engine keeps of requests that have ended: a bounded number of objects, and no tokens."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from wllm_runtime import EngineConfig
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_runtime.testing import save_tiny_llama
from wllm_sched import Abort, Row, SamplingParams, StepPlan, Submit
from wllm_sched.plan import NewBlocks, NewSlot

ASKED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "top_p": 0.8, "top_k": 9, "min_p": 0.02, "logprobs": 3, "n": 3},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.4, "n": 2},
    {"bad_words_token_ids": [(9,), (30, 31)], "logit_bias": {12: 3.0}, "min_tokens": 3, "stop_token_ids": [50, 51]},
    {"allowed_token_ids": [3, 31, 32, 63, 64, 95]},
    {"prompt_logprobs": 2},
    {"allowed_token_ids": [5], "bad_words_token_ids": [(5,)]},  # nothing is left to draw
]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ModelEngine]:
    save_tiny_llama(tmp_path)
    made = create_engine(
        EngineConfig(
            model=str(tmp_path),
            skip_tokenizer_init=True,
            device="cpu",
            max_num_seqs=4,
            max_num_batched_tokens=32,
            block_size=8,
            num_kv_blocks=10,
            kv_offload_gib=0.001,
        )
    )
    yield made
    made.close()


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def serve(engine: ModelEngine, round_number: int) -> set[str | None]:
    """Everything that `ASKED` asks for, some of it aborted; how the answers ended."""
    for request_id, params in enumerate(ASKED):
        prompt = [(7 * i + 11 * request_id + round_number) % 90 + 3 for i in range(20)]
        asked = SamplingParams(**({"max_tokens": 16, "ignore_eos": True} | params))
        engine.submit(Submit(request_id, prompt, asked))
        engine.submit(Submit(100 + request_id, prompt, asked))
    ends: set[str | None] = set()
    while engine.has_work():
        for event in engine.step():
            ends.add(event.finish_reason)
            engine.abort(Abort(event.request_id + 100, 0))
    return ends


def test_requests_leave_no_objects_and_nothing_for_the_collector(engine: ModelEngine) -> None:
    for number in range(2):  # what is made once
        serve(engine, number)
    with no_collector():
        before = len(gc.get_objects())
        for number in range(4):
            assert {"length", "abort", "error"} < serve(engine, number)
        after = len(gc.get_objects())
        unreachable = gc.collect()
    assert engine.stats().preemptions_total and engine.stats().host_loads_total
    assert unreachable == 0
    # An object for each of the 56 requests would already be seen.
    assert after - before < 40


class Tokens(list[int]):
    """Token ids whose end can be watched."""


def test_a_slot_keeps_no_tokens(engine: ModelEngine) -> None:
    runner = engine._model_runner
    tokens = Tokens(range(3, 23))
    watched = weakref.ref(tokens)
    params = SamplingParams(repetition_penalty=1.1, prompt_logprobs=1, min_tokens=2, logit_bias={5: 1.0})
    plan = StepPlan(
        step=0,
        rows=(Row(0, 0, 20, 1),),
        new_slots=(NewSlot(0, tokens, 20, params, 1),),
        new_blocks=(NewBlocks(0, 0, (0, 1)),),
        num_decode_rows=0,
    )
    assert len(runner.launch(plan).wait().tokens) == 1
    with no_collector():
        del plan, tokens
        assert watched() is None
