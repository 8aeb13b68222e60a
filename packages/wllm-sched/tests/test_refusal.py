"""Requests that can never run are refused at once, with the numbers; others go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from wllm_sched import InvalidParameter, RequestRefused, SamplingParams, SchedulerConfig
from wllm_sched.testing import FakeEngine, FakeModel

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=32, vocab_size=100)
MODEL = FakeModel(100)


def refuse(prompt: Sequence[int], params: SamplingParams, num_blocks: int = 64) -> RequestRefused:
    engine = FakeEngine(CONFIG, MODEL, num_blocks=num_blocks)
    engine.ask(0, [1, 2], SamplingParams(max_tokens=2))
    with pytest.raises(RequestRefused) as caught:
        engine.ask(1, prompt, params)
    assert [key for key, events in engine.serve().items() if events[-1].finish_reason == "length"] == [(0, 0)]
    assert isinstance(caught.value, ValueError)
    return caught.value


@pytest.mark.parametrize("prompt", [[], ()])
def test_an_empty_prompt(prompt: Sequence[int]) -> None:
    assert refuse(prompt, SamplingParams()).parameter == "prompt"


@pytest.mark.parametrize("wrong", [-1, 100, 2**40, 1.0, True, "5", None])
def test_a_prompt_with_a_foreign_id(wrong: object) -> None:
    refusal = refuse([1, 2, wrong], SamplingParams())  # type: ignore[list-item]
    assert repr(wrong) in str(refusal) and "0 to 99" in str(refusal)
    assert refusal.parameter == "prompt"


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("stop_token_ids", SamplingParams(stop_token_ids=[5, 100])),
        ("logit_bias", SamplingParams(logit_bias={100: 1.0})),
        ("allowed_token_ids", SamplingParams(allowed_token_ids=[100])),
        ("bad_words_token_ids", SamplingParams(bad_words_token_ids=[[1], [2, 100]])),
    ],
)
def test_parameters_with_a_foreign_id(name: str, params: SamplingParams) -> None:
    refusal = refuse([1], params)
    assert refusal.parameter == name
    assert name in str(refusal) and "100" in str(refusal)


@pytest.mark.parametrize(("length", "max_tokens"), [(32, 1), (33, None), (33, 0), (1000, 16)])
def test_a_prompt_longer_than_the_context(length: int, max_tokens: int | None) -> None:
    refusal = refuse([1] * length, SamplingParams(max_tokens=max_tokens))
    assert refusal.code == "context_length_exceeded"
    assert "maximum context length is 32 tokens. However," in str(refusal) and f"{length} tokens" in str(refusal)


@pytest.mark.parametrize(("length", "max_tokens"), [(31, 1), (32, 0)])
def test_a_prompt_that_just_fits_the_context(length: int, max_tokens: int) -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.ask(0, [1] * length, SamplingParams(max_tokens=max_tokens))
    assert engine.serve()[0, 0][-1].finish_reason == "length"


def test_a_prompt_larger_than_the_whole_pool() -> None:
    refusal = refuse([1] * 13, SamplingParams(max_tokens=1), num_blocks=3)
    assert "12 tokens" in str(refusal) and "13 tokens" in str(refusal)


def test_a_prompt_that_fills_the_whole_pool_runs() -> None:
    engine = FakeEngine(CONFIG, MODEL, num_blocks=3)
    engine.ask(0, [1] * 12, SamplingParams(n=3, max_tokens=1, seed=1))
    assert [events[-1].finish_reason for events in engine.serve().values()] == ["length"] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 0),
        ("max_model_len", -1),
        ("vocab_size", 0),
        ("max_stall_ms", -1.0),
        ("length_salt_above", -1),
        ("eos_token_ids", (-1,)),
        ("enable_prefix_caching", 1),
    ],
)
def test_a_config_that_makes_no_sense(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=name):
        replace(CONFIG, **{name: value})  # type: ignore[arg-type]
