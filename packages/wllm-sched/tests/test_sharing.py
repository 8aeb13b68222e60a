"""Blocks that several samples use: prefix cache, `n` answers to one prompt, preemption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from wllm_sched import Abort, SamplingParams, SchedulerConfig, TokenEvent
from wllm_sched.testing import FakeEngine, FakeModel, expected_sample

CONFIG = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, vocab_size=1000)
MODEL = FakeModel(1000)
FOUR = SamplingParams(max_tokens=4, temperature=0)
PROMPT = list(range(1, 14))


def tokens(events: Sequence[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def answer(prompt: Sequence[int], params: SamplingParams, index: int = 0) -> list[int]:
    return list(expected_sample(MODEL, prompt, params, index, 64).token_ids)


@pytest.mark.parametrize(("length", "hit"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (13, 12)])
def test_the_second_time_all_but_the_last_block_is_cached(length: int, hit: int) -> None:
    engine = FakeEngine(CONFIG, MODEL)
    for request_id, expected in ((0, 0), (1, hit)):
        engine.ask(request_id, PROMPT[:length], FOUR)
        events = engine.serve()[request_id, 0]
        assert tokens(events) == answer(PROMPT[:length], FOUR)
        assert {event.num_cached_tokens for event in events} == {expected}
    assert engine.stats().prefix_cache_hits_total == hit


def test_without_prefix_caching_nothing_is_cached() -> None:
    engine = FakeEngine(replace(CONFIG, enable_prefix_caching=False), MODEL)
    for request_id in (0, 1):
        engine.ask(request_id, PROMPT, FOUR)
        assert engine.serve()[request_id, 0][-1].num_cached_tokens == 0
    stats = engine.stats()
    assert stats.prefix_cache_hits_total == stats.prefix_cache_queries_total == engine.pool.num_cached == 0


def test_an_identical_prompt_one_step_later_shares_the_work() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.ask(0, PROMPT, FOUR)
    engine.step()
    engine.ask(1, PROMPT, FOUR)
    events = engine.serve()
    assert events[1, 0][0].num_cached_tokens == 12
    assert tokens(events[0, 0]) == tokens(events[1, 0])


def test_the_next_turn_finds_the_generated_tokens() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    params = SamplingParams(max_tokens=12, temperature=0)
    engine.ask(0, PROMPT, params)
    first = tokens(engine.serve()[0, 0])
    engine.ask(1, [*PROMPT, *first, 5, 6], FOUR)
    events = engine.serve()[1, 0]
    assert events[0].num_cached_tokens == 24  # 13 + 12 tokens, the last of which was never computed
    assert tokens(events) == answer([*PROMPT, *first, 5, 6], FOUR)


def test_salts_keep_prompts_apart() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    hits = []
    for request_id, salt in enumerate(("", "a", "b", "a", "\ud800")):
        engine.ask(request_id, PROMPT, replace(FOUR, cache_salt=salt))
        hits.append(engine.serve()[request_id, 0][0].num_cached_tokens)
    assert hits == [0, 0, 0, 12, 0]


def test_length_dependent_prompts_share_only_with_their_own_length() -> None:
    config = replace(CONFIG, length_salt_above=10)
    engine = FakeEngine(config, FakeModel(1000, length_matters_above=10))
    hits = []
    for request_id, length in enumerate((13, 12, 13, 10, 9)):
        engine.ask(request_id, PROMPT[:length], FOUR)
        hits.append(engine.serve()[request_id, 0][0].num_cached_tokens)
    assert hits == [0, 0, 12, 0, 8]


def test_a_reset_forgets_all_prefixes() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.ask(0, PROMPT, FOUR)
    engine.step()
    engine.reset_prefix_cache()
    engine.serve()
    engine.ask(1, PROMPT, FOUR)
    assert engine.serve()[1, 0][0].num_cached_tokens == 0


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("length", "copies"), [(13, 0), (12, 4), (14, 4), (1, 0)])
def test_siblings_compute_the_prompt_once(caching: bool, depth: int, length: int, copies: int) -> None:
    engine = FakeEngine(replace(CONFIG, enable_prefix_caching=caching), MODEL, depth=depth)
    prompt, params = list(range(1, length + 1)), SamplingParams(n=5, max_tokens=1, seed=3)
    engine.ask(0, prompt, params)
    events = engine.serve()
    assert [tokens(events[0, index]) for index in range(5)] == [answer(prompt, params, index) for index in range(5)]
    assert engine.device.num_tokens == length + 4
    assert engine.device.num_copies == copies
    assert engine.stats().prompt_tokens_total == length


def test_more_siblings_than_slots() -> None:
    engine = FakeEngine(replace(CONFIG, max_num_seqs=2), MODEL)
    params = SamplingParams(n=7, max_tokens=5, seed=3)
    engine.ask(0, PROMPT, params)
    events = engine.serve()
    assert [tokens(events[0, index]) for index in range(7)] == [answer(PROMPT, params, index) for index in range(7)]


def test_another_sibling_takes_the_prompt_over() -> None:
    engine = FakeEngine(replace(CONFIG, max_num_batched_tokens=4), MODEL)
    params = SamplingParams(n=3, max_tokens=4, seed=3)
    engine.ask(0, PROMPT, params)
    engine.step()
    engine.abort(Abort(0, 0))
    events = engine.serve()
    assert events[0, 0][-1].finish_reason == "abort"
    assert [tokens(events[0, index]) for index in (1, 2)] == [answer(PROMPT, params, index) for index in (1, 2)]


def test_only_sample_0_gets_prompt_logprobs() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    params = SamplingParams(n=3, max_tokens=2, seed=1, prompt_logprobs=1)
    engine.ask(0, PROMPT, params)
    events = engine.serve()
    assert events[0, 0][0].prompt_logprobs == expected_sample(MODEL, PROMPT, params, 0, 64).prompt_logprobs
    assert events[0, 1][0].prompt_logprobs is None


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_preemption_loses_and_repeats_nothing(caching: bool, depth: int) -> None:
    config = replace(CONFIG, max_num_batched_tokens=16, enable_prefix_caching=caching)
    engine = FakeEngine(config, MODEL, num_blocks=20, depth=depth)
    params = SamplingParams(max_tokens=40, temperature=1, seed=5, logprobs=1)
    prompts = [[request_id, *PROMPT] for request_id in range(8)]
    for request_id, prompt in enumerate(prompts):
        engine.ask(request_id, prompt, params)
    events = engine.serve()
    for request_id, prompt in enumerate(prompts):
        expected = expected_sample(MODEL, prompt, params, 0, 64)
        got = events[request_id, 0]
        assert tokens(got) == list(expected.token_ids)
        assert tuple(entry for event in got for entry in event.logprobs or ()) == expected.logprobs
    stats = engine.stats()
    assert stats.preemptions_total > 0
    assert stats.num_free_blocks == 20


def test_the_latest_arrival_is_preempted_first() -> None:
    engine = FakeEngine(CONFIG, MODEL, num_blocks=12)
    params = SamplingParams(max_tokens=30, temperature=0)
    finished = []
    for request_id in range(3):
        engine.ask(request_id, [request_id, 1, 2], params)
    while engine.has_work():
        finished += [event.request_id for event in engine.step() if event.finish_reason]
    assert finished == [0, 1, 2]
    assert engine.stats().preemptions_total > 0


def test_the_lowest_priority_is_preempted_first() -> None:
    engine = FakeEngine(CONFIG, MODEL, num_blocks=12)
    finished = []
    for request_id in range(3):
        engine.ask(request_id, [request_id, 1, 2], SamplingParams(max_tokens=30, temperature=0, priority=-request_id))
    while engine.has_work():
        finished += [event.request_id for event in engine.step() if event.finish_reason]
    assert finished == [2, 1, 0]
    assert engine.stats().preemptions_total > 0


def test_a_seed_means_the_same_answers_in_any_company() -> None:
    params = SamplingParams(n=2, max_tokens=6, seed=11)
    alone = FakeEngine(CONFIG, MODEL)
    alone.ask(0, PROMPT, params)
    crowd = FakeEngine(replace(CONFIG, max_num_batched_tokens=8), MODEL, num_blocks=20)
    for request_id in range(5):
        crowd.ask(request_id, PROMPT[request_id:], SamplingParams(max_tokens=20))
    crowd.ask(9, PROMPT, params)
    first, second = alone.serve(), crowd.serve()
    for index in (0, 1):
        assert tokens(first[0, index]) == tokens(second[9, index])
    assert tokens(first[0, 0]) != tokens(first[0, 1])


def test_without_a_seed_answers_differ() -> None:
    engine = FakeEngine(CONFIG, MODEL)
    engine.ask(0, PROMPT, SamplingParams(n=4, max_tokens=6))
    assert len({tuple(tokens(events)) for events in engine.serve().values()}) == 4
