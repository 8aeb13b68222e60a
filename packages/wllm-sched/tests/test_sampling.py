"""`SamplingParams`: every range, every wrong type, one form after construction."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields, replace

import pytest

from wllm_sched import InvalidParameter, SamplingParams

GOOD: list[tuple[str, object]] = [
    ("n", 1), ("n", 128),
    ("temperature", 0), ("temperature", 1e-30), ("temperature", 5.0),
    ("top_p", 1e-4), ("top_p", 1),
    ("top_k", 0), ("top_k", 1), ("top_k", 10**9),
    ("min_p", 0.0), ("min_p", 1.0),
    ("repetition_penalty", 0.01), ("repetition_penalty", 3),
    ("presence_penalty", -2), ("presence_penalty", 2.0),
    ("frequency_penalty", -2.0), ("frequency_penalty", 2),
    ("seed", 0), ("seed", -1), ("seed", 2**64 - 1), ("seed", -(2**63)),
    ("max_tokens", 0), ("max_tokens", 10**9),
    ("min_tokens", 0), ("min_tokens", 16),
    ("logprobs", 0), ("logprobs", 20), ("prompt_logprobs", 0), ("prompt_logprobs", 20),
    ("ignore_eos", True), ("include_stop_str_in_output", True), ("skip_special_tokens", False),
    ("priority", -5), ("cache_salt", "team"),
]  # fmt: skip

BAD: list[tuple[str, object]] = [
    ("n", 0), ("n", 129), ("n", True), ("n", 1.0), ("n", "1"),
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("temperature", "hot"),
    ("temperature", True), ("temperature", [1.0]),
    ("top_p", -0.1), ("top_p", 1.1), ("top_p", math.nan), ("top_p", False),
    ("top_k", -2), ("top_k", 1.5), ("top_k", True),
    ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan),
    ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", math.inf),
    ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", 2.1), ("frequency_penalty", math.nan),
    ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 1.5), ("seed", True),
    ("max_tokens", -1), ("max_tokens", 1.0), ("max_tokens", True),
    ("min_tokens", -1), ("min_tokens", 17), ("min_tokens", True),
    ("stop", [""]), ("stop", ""), ("stop", 5), ("stop", ["a", 5]), ("stop", b"x"),
    ("stop_token_ids", [-1]), ("stop_token_ids", [1.5]), ("stop_token_ids", [True]), ("stop_token_ids", 5),
    ("stop_token_ids", "12"),
    ("ignore_eos", 1), ("ignore_eos", "yes"), ("skip_special_tokens", 0), ("include_stop_str_in_output", 1),
    ("logit_bias", {"5": 1.0}), ("logit_bias", {-1: 1.0}), ("logit_bias", {5: 101}), ("logit_bias", {5: math.nan}),
    ("logit_bias", {True: 1.0}), ("logit_bias", [5]), ("logit_bias", {5: "x"}),
    ("bad_words", [""]), ("bad_words", "word"), ("bad_words", [3]),
    ("bad_words_token_ids", [[]]), ("bad_words_token_ids", [3]), ("bad_words_token_ids", [[-1]]),
    ("bad_words_token_ids", 3),
    ("allowed_token_ids", []), ("allowed_token_ids", [-1]), ("allowed_token_ids", ["5"]),
    ("logprobs", -1), ("logprobs", 21), ("logprobs", True), ("prompt_logprobs", -1), ("prompt_logprobs", 21),
    ("priority", 1.5), ("priority", 2**63), ("cache_salt", 5),
]  # fmt: skip


def make(name: str, value: object) -> SamplingParams:
    return SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_good_values_are_kept(name: str, value: object) -> None:
    assert getattr(make(name, value), name) == value


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_values_are_named(name: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=name) as caught:
        make(name, value)
    assert caught.value.parameter == name
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [0.0, 0])
def test_top_p_zero_is_greedy(value: float) -> None:
    params = SamplingParams(temperature=1.0, top_p=value)
    assert (params.temperature, params.top_p) == (0.0, 1.0)


def test_top_k_minus_one_is_off() -> None:
    assert SamplingParams(top_k=-1).top_k == 0


def test_a_stop_string_may_stand_alone() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_none_is_the_default() -> None:
    nothing = {entry.name: None for entry in fields(SamplingParams)}
    assert SamplingParams(**nothing) == replace(SamplingParams(), max_tokens=None)  # type: ignore[arg-type]


def test_lists_become_tuples_and_numbers_plain() -> None:
    params = SamplingParams(temperature=1, stop_token_ids=[1, 2], allowed_token_ids=[4], logit_bias={1: 2})
    assert (params.stop_token_ids, params.allowed_token_ids) == ((1, 2), (4,))
    assert SamplingParams(bad_words_token_ids=[[1], [2, 3]]).bad_words_token_ids == ((1,), (2, 3))
    assert type(params.temperature) is float
    assert params.logit_bias == {1: 2.0}


def test_foreign_number_types_are_taken_by_value() -> None:
    class Five:
        def __index__(self) -> int:
            return 5

    assert type(make("top_k", Five()).top_k) is int


def test_defaults_are_not_shared() -> None:
    assert SamplingParams().logit_bias is not SamplingParams().logit_bias


def test_params_survive_pickling_and_replacing() -> None:
    params = SamplingParams(n=2, seed=7, stop="x", logit_bias={3: -1.0})
    assert pickle.loads(pickle.dumps(params)) == params == replace(params)


def test_the_error_survives_pickling() -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(n=0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.parameter, str(copy)) == ("n", str(caught.value))


def test_min_tokens_has_no_bound_without_max_tokens() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=500).min_tokens == 500
