"""Bad words become token ids."""

import pytest

from wllm_api.text import Tokenizer, resolve_bad_words
from wllm_sched.errors import InvalidParameter
from wllm_sched.sampling import SamplingParams


def test_a_word_is_banned_with_and_without_its_space(byte_level: Tokenizer) -> None:
    params = resolve_bad_words(SamplingParams(bad_words=[" the"]), byte_level)
    assert [byte_level.decode(list(ids)) for ids in params.bad_words_token_ids] == ["the", " the"]
    assert not params.bad_words


def test_ids_given_before_are_kept(byte_level: Tokenizer) -> None:
    params = resolve_bad_words(SamplingParams(bad_words=["x"], bad_words_token_ids=[[7, 8]]), byte_level)
    assert params.bad_words_token_ids[0] == (7, 8)
    assert len(params.bad_words_token_ids) == 3


def test_other_parameters_stay(byte_level: Tokenizer) -> None:
    params = resolve_bad_words(SamplingParams(bad_words=["x"], seed=5, stop=["y"]), byte_level)
    assert (params.seed, tuple(params.stop or ())) == (5, ("y",))


def test_no_special_tokens_are_added(sentencepiece: Tokenizer) -> None:
    params = resolve_bad_words(SamplingParams(bad_words=["the"]), sentencepiece)
    assert not any(set(ids) & {1, 2} for ids in params.bad_words_token_ids)


def test_a_blank_word_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidParameter, match="bad word is empty") as caught:
        resolve_bad_words(SamplingParams(bad_words=["  "]), byte_level)
    assert caught.value.parameter == "bad_words"


def test_each_word_is_banned_once_in_the_order_given(byte_level: Tokenizer) -> None:
    once = resolve_bad_words(SamplingParams(bad_words=["b", "a"]), byte_level)
    again = resolve_bad_words(SamplingParams(bad_words=["b", " b", "a", "b"]), byte_level)
    assert again.bad_words_token_ids == once.bad_words_token_ids
    assert len(once.bad_words_token_ids) == 4
