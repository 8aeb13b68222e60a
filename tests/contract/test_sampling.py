"""What each sampling field does to the text, told by a text that would be another one without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from contract.conftest import Ask
from contract.requests import later, text_of

COUNT = "1, 2, 3, 4, 5,"
LOOP = "The cat sat." + " The cat sat." * 4
Ids = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def greedy(complete: Ask) -> str:
    return str(complete(COUNT).choices[0].text)


@pytest.fixture(scope="module")
def loop(complete: Ask) -> str:
    text = str(complete(LOOP, max_tokens=8).choices[0].text)
    assert text == " The cat sat." * 2
    return text


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 0.001}, {"top_p": 0}, {"min_p": 1}], ids=str)
def test_narrow_choice_is_greedy_at_any_temperature(complete: Ask, greedy: str, fields: dict[str, Any]) -> None:
    assert complete(COUNT, temperature=2, seed=1, **fields).choices[0].text == greedy


def test_temperature_brings_chance(complete: Ask, greedy: str) -> None:
    assert complete(COUNT, temperature=2, seed=1, max_tokens=8).choices[0].text[: len(greedy)] != greedy


def test_seed_repeats(chat: Ask) -> None:
    fields: Any = {"temperature": 1.5, "max_tokens": 8}
    texts = [text_of(chat(seed=seed, **fields)) for seed in (11, 11, 12)]
    assert texts[0] == texts[1] != texts[2]


def test_seed_repeats_all_choices(chat: Ask) -> None:
    fields: Any = {"temperature": 1.5, "n": 3, "seed": 9, "max_tokens": 6}
    answers = [[choice.message.content for choice in chat(**fields).choices] for _ in range(2)]
    assert answers[0] == answers[1] and len(set(answers[0])) > 1


def test_without_a_seed_it_varies(chat: Ask) -> None:
    assert len({text_of(chat(temperature=2, max_tokens=8)) for _ in range(3)}) > 1


def test_n_copies_of_a_greedy_answer(chat: Ask) -> None:
    answer = chat(n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 1
    assert answer.usage.completion_tokens == 12


@pytest.mark.parametrize(
    "fields",
    [{"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 1.5}, {"bad_words": [" The"]}],
    ids=str,
)
def test_penalties_break_a_loop(complete: Ask, loop: str, fields: dict[str, Any]) -> None:
    assert complete(LOOP, max_tokens=8, **fields).choices[0].text != loop


@pytest.mark.parametrize("fields", [{"frequency_penalty": -2}, {"presence_penalty": -2}], ids=str)
def test_negative_penalties_make_a_loop(complete: Ask, fields: dict[str, Any]) -> None:
    free, held = (complete("Once upon a time", max_tokens=24, **one).choices[0] for one in ({}, fields))
    words = held.text.split()
    assert len(set(words)) < len(words) and len(set(words)) < len(set(free.text.split()))


def test_bias_forces_a_token(complete: Ask, ids: Ids) -> None:
    (rome,) = ids(" Rome")
    assert complete(logit_bias={str(rome): 100}, max_tokens=3).choices[0].text == " Rome" * 3


def test_bias_bans_a_token(complete: Ask, ids: Ids) -> None:
    (paris,) = ids(" Paris")
    assert not complete(logit_bias={str(paris): -100}).choices[0].text.startswith(" Paris")


def test_bias_in_a_chat(chat: Ask, ids: Ids) -> None:
    (rome,) = ids(" Rome")
    assert text_of(chat(logit_bias={str(rome): 100}, max_tokens=2)) == " Rome Rome"


def test_allowed_tokens(complete: Ask, ids: Ids) -> None:
    (rome,), (paris,) = ids(" Rome"), ids(" Paris")
    text = complete(allowed_token_ids=[rome, paris], temperature=2, seed=1, max_tokens=6).choices[0].text
    assert not text.replace(" Rome", "").replace(" Paris", "")


@pytest.mark.parametrize(("stop", "text"), [([" 8", " 9"], " 6, 7,"), later("4", " 6, 7, 8, 9, 10, 11, 12, 13, 1")])
def test_stop_strings_end_the_text(complete: Ask, stop: Any, text: str) -> None:
    (choice,) = complete(COUNT, stop=stop, max_tokens=40).choices
    assert choice.text == text and choice.finish_reason == "stop"


def test_stop_string_may_be_kept(complete: Ask) -> None:
    assert complete(COUNT, stop=" 8", max_tokens=20, include_stop_str_in_output=True).choices[0].text == " 6, 7, 8"


def test_stop_string_in_a_chat(chat: Ask) -> None:
    (choice,) = chat("What is the capital of France?", stop=[" Paris"], max_tokens=20).choices
    assert choice.message.content == "The capital of France is" and choice.finish_reason == "stop"


def test_stop_token(complete: Ask, ids: Ids) -> None:
    (choice,) = complete(stop_token_ids=ids(" Paris")).choices
    assert choice.finish_reason == "stop" and "." not in choice.text


def test_least_length(complete: Ask, ids: Ids) -> None:
    fields: Any = {"stop_token_ids": ids(" Paris"), "max_tokens": 6}
    assert complete(**fields).usage.completion_tokens == 1
    assert complete(min_tokens=4, **fields).usage.completion_tokens >= 4


def test_least_length_holds_as_long_as_the_form_may_go_on(complete: Ask, ids: Ids) -> None:
    """A form that is complete ends the answer, whatever `min_tokens` says; before that no end is chosen."""
    (short,) = complete(max_tokens=20, min_tokens=12, guided_regex="[0-9]{3}").choices
    assert len(short.text) == 3 and short.finish_reason == "stop"
    (end,) = ids("<|im_end|>")
    fields: Any = {"guided_regex": "[ab]+", "logit_bias": {str(end): 100}, "max_tokens": 20}
    assert complete(**fields).usage.completion_tokens == 2
    assert complete(min_tokens=12, **fields).usage.completion_tokens == 13


def test_prompt_is_truncated_from_the_left(complete: Ask, ids: Ids) -> None:
    answer = complete("Some words in front. " * 20 + COUNT, truncate_prompt_tokens=len(ids(COUNT)), max_tokens=2)
    assert answer.usage.prompt_tokens == len(ids(COUNT))


def test_special_tokens_may_be_shown(chat: Ask) -> None:
    fields: Any = {"ignore_eos": True, "max_tokens": 12}
    shown = text_of(chat("What is the capital of France?", skip_special_tokens=False, **fields))
    assert "<|im_end|>" in shown
    assert "<|im_end|>" not in text_of(chat("What is the capital of France?", **fields))
