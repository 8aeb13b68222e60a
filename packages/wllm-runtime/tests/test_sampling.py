"""A request gets what it asks of the sampler, through the whole engine; against transformers where that can be."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from wllm_runtime import EngineConfig
from wllm_runtime.engine import ModelEngine, create_engine
from wllm_runtime.testing import TINY_VOCAB_SIZE, generate, save_tiny_llama, tokens_of

PROMPT = [5, 9, 5, 30, 41, 9]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelEngine, transformers.PreTrainedModel]:
    folder = tmp_path_factory.mktemp("tiny")
    reference = save_tiny_llama(folder)
    return create_engine(EngineConfig(model=str(folder), skip_tokenizer_init=True)), reference


def reference_tokens(reference: transformers.PreTrainedModel, **options: Any) -> list[int]:
    out = reference.generate(torch.tensor([PROMPT]), do_sample=False, pad_token_id=0, **options)
    return out[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("penalty", [1.3, 0.7, 2.0])
def test_repetition_penalty_equals_transformers(model: Any, penalty: float) -> None:
    engine, reference = model
    # transformers' min_new_tokens bans the end token, so ban it here too.
    banned = {"ignore_eos": True, "logit_bias": {2: -100.0}}
    events = generate(engine, PROMPT, temperature=0, max_tokens=30, repetition_penalty=penalty, **banned)
    expected = reference_tokens(reference, max_new_tokens=30, min_new_tokens=30, repetition_penalty=penalty)
    assert tokens_of(events) == expected


def test_min_tokens_holds_back_the_end(model: Any) -> None:
    engine, reference = model
    biased = {"logit_bias": {2: 100.0}}
    assert tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=9, **biased)) == [2]
    ours = tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=9, min_tokens=5, **biased))
    assert len(ours) == 6 and ours[-1] == 2 and 2 not in ours[:5]
    assert ours[:5] == reference_tokens(reference, max_new_tokens=5, min_new_tokens=5)


def test_logit_bias_moves_and_bans(model: Any) -> None:
    engine, _ = model
    (first,) = tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=1))
    assert tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=1, logit_bias={first: -100.0})) != [first]
    assert tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=1, logit_bias={77: 100.0})) == [77]


def test_allowed_token_ids_are_the_only_ones(model: Any) -> None:
    engine, _ = model
    allowed = [3, 31, 32, 63, 64, 95]
    drawn = tokens_of(generate(engine, PROMPT, temperature=1.5, max_tokens=60, allowed_token_ids=allowed))
    assert set(drawn) <= set(allowed) and len(set(drawn)) > 2


def test_bad_words_never_come_to_their_end(model: Any) -> None:
    engine, _ = model
    plain = tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=12, ignore_eos=True))
    pair = tuple(plain[3:5])
    ours = tokens_of(
        generate(engine, PROMPT, temperature=0, max_tokens=12, ignore_eos=True, bad_words_token_ids=[pair, (plain[0],)])
    )
    assert plain[0] not in ours
    assert pair not in list(itertools.pairwise(ours))


def test_presence_and_frequency_penalties_spread_the_output(model: Any) -> None:
    engine, _ = model
    plain = Counter(tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=60, ignore_eos=True)))
    for penalty in ("presence_penalty", "frequency_penalty"):
        spread = Counter(
            tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=60, ignore_eos=True, **{penalty: 2.0}))
        )
        assert len(spread) > len(plain)


def test_equal_seeds_draw_equal_tokens_whatever_runs_beside(model: Any) -> None:
    engine, _ = model
    options = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    first = tokens_of(generate(engine, PROMPT, seed=7, **options))
    generate(engine, [8, 8], seed=1, **options)
    assert tokens_of(generate(engine, PROMPT, seed=7, **options)) == first
    assert tokens_of(generate(engine, PROMPT, seed=8, **options)) != first
    assert tokens_of(generate(engine, PROMPT, seed=0, **options)) != first
    both = generate(engine, PROMPT, seed=7, n=2, **options)
    assert tokens_of(both, 0) != tokens_of(both, 1)


@pytest.mark.parametrize(
    "nearly_greedy",
    [
        {"temperature": 1e-30},
        {"temperature": 0.0001},
        {"top_p": 0.0},
        {"top_p": 0.0001},
        {"top_k": 1},
        {"min_p": 1.0},
        {"temperature": 0.0001, "top_p": 0.0001, "top_k": 1, "min_p": 1.0},
    ],
)
def test_tiny_values_are_greedy(model: Any, nearly_greedy: dict[str, float]) -> None:
    engine, _ = model
    greedy = tokens_of(generate(engine, PROMPT, temperature=0, max_tokens=20, ignore_eos=True))
    assert tokens_of(generate(engine, PROMPT, max_tokens=20, ignore_eos=True, **nearly_greedy)) == greedy


@pytest.mark.parametrize("top_k", [-1, 0, TINY_VOCAB_SIZE, 10**9])
def test_top_k_of_everything_is_off(model: Any, top_k: int) -> None:
    engine, _ = model
    options = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True, "seed": 3}
    assert tokens_of(generate(engine, PROMPT, top_k=top_k, **options)) == tokens_of(generate(engine, PROMPT, **options))


def test_prompt_logprobs_equal_transformers_with_a_warm_cache_too(model: Any) -> None:
    engine, reference = model
    prompt = [(7 * i) % 90 + 3 for i in range(40)]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
    for _ in range(2):
        events = generate(engine, prompt, temperature=0, max_tokens=1, prompt_logprobs=3)
        (entries,) = [event.prompt_logprobs for event in events if event.prompt_logprobs is not None]
        assert len(entries) == 40 and entries[0] is None
        for position, entry in enumerate(entries[1:], start=1):
            row = expected[position - 1]
            assert entry.token_id == prompt[position]
            assert entry.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-3)
            assert entry.rank == int((row > row[prompt[position]]).sum()) + 1
            assert [token for token, _ in entry.top] == row.topk(3).indices.tolist()


def test_scoring_generates_nothing(model: Any) -> None:
    engine, _ = model
    events = generate(engine, PROMPT, max_tokens=0, prompt_logprobs=0)
    assert tokens_of(events) == []
    assert events[-1].finish_reason == "length"
    assert sum(event.prompt_logprobs is not None for event in events) == 1


def test_every_end_token_ends_and_is_the_last(model: Any) -> None:
    engine, _ = model
    for stop in ({}, {"stop_token_ids": [44]}):
        ends = 44 if stop else 2
        events = generate(engine, PROMPT, temperature=0, max_tokens=9, logit_bias={ends: 100.0}, **stop)
        assert tokens_of(events) == [ends]
        assert events[-1].finish_reason == "stop" and events[-1].stop_token_id == ends


def test_scores_that_are_not_finite_end_one_request_only(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    engine = create_engine(EngineConfig(model=str(tmp_path), skip_tokenizer_init=True))
    # A token id whose embedding is broken spoils the requests that hold it.
    engine._model_runner._forward._model.embedding[50] = float("nan")
    broken = generate(engine, [5, 50, 6], temperature=0, max_tokens=4)
    assert broken[-1].finish_reason == "error" and "not finite" in (broken[-1].error or "")
    assert broken[-1].error_code is None
    healthy = generate(engine, PROMPT, temperature=0, max_tokens=4, ignore_eos=True)
    assert len(tokens_of(healthy)) == 4
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


@pytest.mark.parametrize(
    "impossible",
    [
        {"min_tokens": 3, "allowed_token_ids": [2]},
        {"min_tokens": 3, "stop_token_ids": range(TINY_VOCAB_SIZE)},
        {"allowed_token_ids": [7], "bad_words_token_ids": [[7]]},
        {"repetition_penalty": 1e-300},
    ],
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_parameters_that_leave_no_token_are_the_requests_own_fault(
    model: Any, impossible: dict[str, Any], temperature: float
) -> None:
    engine, _ = model
    events = generate(engine, PROMPT, temperature=temperature, max_tokens=4, **impossible)
    assert (events[-1].finish_reason, events[-1].error_code) == ("error", "no_token_allowed")
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
