"""Log-probabilities of both shapes: complete, sorted, aligned with the text, the same streamed and whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
from contract.conftest import Ask


@pytest.fixture(scope="module")
def rows(chat: Ask) -> Any:
    return chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content


def test_a_row_for_each_token(rows: Any, chat: Ask) -> None:
    assert len(rows) == 4
    assert "".join(row.token for row in rows) == chat().choices[0].message.content


def test_as_many_alternatives_as_asked_for(rows: Any) -> None:
    assert [len(row.top_logprobs) for row in rows] == [3] * 4


def test_alternatives_are_sorted(rows: Any) -> None:
    for row in rows:
        values = [entry.logprob for entry in row.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1.0001


def test_greedy_token_is_the_first_alternative(rows: Any) -> None:
    assert all((row.token, row.logprob) == (row.top_logprobs[0].token, row.top_logprobs[0].logprob) for row in rows)


def test_bytes_are_those_of_the_token(rows: Any) -> None:
    assert all(bytes(row.bytes) == row.token.encode() for row in rows)


@pytest.mark.parametrize("top", [None, 0])
def test_without_alternatives(chat: Ask, top: int | None) -> None:
    content = chat(logprobs=True, top_logprobs=top, max_tokens=2).choices[0].logprobs.content
    assert [row.top_logprobs for row in content] == [[], []]


def test_most_alternatives(chat: Ask) -> None:
    (row,) = chat(logprobs=True, top_logprobs=20, max_tokens=1).choices[0].logprobs.content
    assert len({entry.token for entry in row.top_logprobs}) == 20


def test_values_do_not_depend_on_the_temperature(chat: Ask, rows: Any) -> None:
    warm = chat(logprobs=True, temperature=1.7, top_k=1, seed=1).choices[0].logprobs.content
    assert [row.logprob for row in warm] == pytest.approx([row.logprob for row in rows], abs=1e-3)


def test_half_characters_join(chat: Ask) -> None:
    (choice,) = chat("Go on.", logprobs=True, max_tokens=16, structured_outputs={"choice": ["🙂 naïve 日本"]}).choices
    assert b"".join(bytes(row.bytes) for row in choice.logprobs.content).decode() == "🙂 naïve 日本"


def test_stream_has_the_same_rows(chat: Ask, rows: Any) -> None:
    streamed = [
        row
        for chunk in chat(logprobs=True, top_logprobs=3, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for row in choice.logprobs.content
    ]
    assert [row.token for row in streamed] == [row.token for row in rows]
    assert [row.logprob for row in streamed] == pytest.approx([row.logprob for row in rows], abs=1e-3)


@pytest.mark.parametrize("top", [0, 1, 5])
def test_completion_maps(complete: Ask, top: int) -> None:
    (choice,) = complete(logprobs=top).choices
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 4
    assert "".join(logprobs.tokens) == choice.text
    # The chosen token is in its map even when it is not among the best.
    assert all(len(entry) in (top, top + 1) and len(entry) >= 1 for entry in logprobs.top_logprobs)
    for token, value, entry in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert entry[token] == value


def test_offsets_point_into_the_text(complete: Ask) -> None:
    (choice,) = complete(echo=True, logprobs=1).choices
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert choice.text.startswith(token, offset)


def test_first_prompt_token_has_none(complete: Ask) -> None:
    (choice,) = complete(echo=True, logprobs=1, max_tokens=1).choices
    first, *others = choice.logprobs.token_logprobs
    assert first is None and all(value <= 0 for value in others)


def test_prompt_logprobs_of_a_chat(chat: Ask) -> None:
    answer = chat(prompt_logprobs=1, max_tokens=1)
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens and answer.prompt_logprobs[0] is None


def test_prompt_logprobs_do_not_depend_on_the_cache(complete: Ask) -> None:
    values = [complete(echo=True, logprobs=0, max_tokens=0).choices[0].logprobs.token_logprobs for _ in range(2)]
    assert values[0][1:] == pytest.approx(values[1][1:], abs=1e-3)
