"""Plain completions: kinds of prompts, their numbering, echo, scoring, streams."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import openai
import pytest
from contract.conftest import Ask
from contract.requests import later

FRANCE = "The capital of France is"
ITALY = "The capital of Italy is"
Ids = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def answer(complete: Ask) -> Any:
    return complete()


def test_head(answer: Any, model: str) -> None:
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion" and answer.model == model


def test_choice(answer: Any) -> None:
    (choice,) = answer.choices
    assert choice.index == 0 and choice.finish_reason == "length" and choice.logprobs is None
    assert choice.text.startswith(" Paris")


def test_usage(answer: Any, ids: Ids) -> None:
    prompt = len(ids(FRANCE))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 4)
    assert answer.usage.total_tokens == prompt + 4


def test_default_length(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=FRANCE, extra_body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.completion_tokens == 16


def test_ids_are_the_text(complete: Ask, ids: Ids, answer: Any) -> None:
    assert complete(ids(FRANCE)).choices[0].text == answer.choices[0].text


@pytest.mark.parametrize("as_ids", [False, True])
def test_prompts_are_answered_in_order(complete: Ask, ids: Ids, as_ids: bool) -> None:
    prompts = [ids(text) if as_ids else text for text in (FRANCE, ITALY)]
    answer = complete(prompts, max_tokens=1)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, " Paris"), (1, " Rome")]
    assert answer.usage.completion_tokens == 2
    assert answer.usage.prompt_tokens == len(ids(FRANCE)) + len(ids(ITALY))


def test_prompts_times_n(complete: Ask) -> None:
    answer = complete([FRANCE, ITALY], n=2, max_tokens=1)
    assert [choice.text for choice in answer.choices] == [" Paris", " Paris", " Rome", " Rome"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def test_echo_puts_the_prompt_in_front(complete: Ask, answer: Any) -> None:
    assert complete(echo=True).choices[0].text == FRANCE + answer.choices[0].text


def test_scoring_alone(complete: Ask, ids: Ids) -> None:
    answer = complete(FRANCE + " Paris", echo=True, logprobs=1, max_tokens=0)
    (choice,) = answer.choices
    assert choice.text == FRANCE + " Paris" and answer.usage.completion_tokens == 0
    assert len(choice.logprobs.tokens) == len(ids(FRANCE + " Paris"))


def test_likelihoods_as_an_evaluation_asks_for_them(complete: Ask, ids: Ids) -> None:
    """Lists of ids, one token of answer: the truth is likelier than another answer."""
    start = len(ids(FRANCE))
    answer = complete([ids(FRANCE + end) for end in (" Paris", " Rome")], echo=True, logprobs=1, max_tokens=1, seed=1)
    sums = [sum(choice.logprobs.token_logprobs[start:-1]) for choice in answer.choices]
    assert sums[0] > sums[1]
    tops = answer.choices[0].logprobs.top_logprobs[start]
    assert max(tops, key=tops.get) == " Paris"


@pytest.mark.parametrize(
    "fields",
    [{"echo": True}, {"n": 2}, later({}), later({"stop": "."}), later({"temperature": 1.2, "seed": 2})],
    ids=str,
)
def test_stream_is_the_whole(complete: Ask, fields: dict[str, Any]) -> None:
    whole = complete([FRANCE, ITALY], max_tokens=6, **fields)
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    *chunks, last = complete(
        [FRANCE, ITALY], max_tokens=6, stream=True, stream_options={"include_usage": True}, **fields
    )
    for chunk in chunks:
        assert chunk.object == "text_completion" and chunk.id == last.id
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    assert [texts[choice.index] for choice in whole.choices] == [choice.text for choice in whole.choices]
    assert [reasons[choice.index] for choice in whole.choices] == [choice.finish_reason for choice in whole.choices]
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens


OPTIONAL = ["suffix", "echo", "logprobs", "best_of", "n", "stop", "seed", "temperature", "user", "logit_bias"]


@pytest.mark.parametrize(
    "fields", [OPTIONAL, *(pytest.param([field], id=field, marks=pytest.mark.full) for field in OPTIONAL)]
)
def test_nulls_are_absent(complete: Ask, answer: Any, fields: list[str]) -> None:
    assert complete(**dict.fromkeys(fields)).choices[0].text == answer.choices[0].text


def test_end_of_text_may_be_ignored(complete: Ask) -> None:
    prompt = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>"
    assert complete(prompt, max_tokens=6, ignore_eos=True).usage.completion_tokens == 6


def test_token_ids_are_returned(complete: Ask, ids: Ids) -> None:
    (choice,) = complete(return_token_ids=True).choices
    assert choice.prompt_token_ids == ids(FRANCE) and len(choice.token_ids) == 4
