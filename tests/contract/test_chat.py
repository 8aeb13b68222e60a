"""Whole chat answers: their shape, their roles, and every optional field as null."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest
from contract.conftest import Ask
from contract.requests import CITY, function, text_of, user


@pytest.fixture(scope="module")
def answer(chat: Ask) -> Any:
    return chat()


@pytest.fixture(scope="module")
def two_tokens(chat: Ask) -> str:
    return text_of(chat(max_tokens=2))


def test_head(answer: Any, model: str) -> None:
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == model
    assert abs(answer.created - time.time()) < 600


def test_choice(answer: Any) -> None:
    (choice,) = answer.choices
    assert choice.index == 0 and choice.finish_reason == "length" and choice.logprobs is None
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.message.refusal is None and choice.message.tool_calls is None


def test_usage(answer: Any) -> None:
    usage = answer.usage
    assert usage.completion_tokens == 4 and usage.prompt_tokens > 10
    assert usage.total_tokens == usage.prompt_tokens + 4


def test_ids_differ(chat: Ask, answer: Any) -> None:
    assert chat().id != answer.id


def test_greedy_is_repeatable(chat: Ask, answer: Any) -> None:
    assert text_of(chat(temperature=0)) == text_of(chat(temperature=0)) == text_of(answer)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_tokens(chat: Ask, limit: int) -> None:
    answer = chat(max_tokens=limit)
    assert answer.usage.completion_tokens == limit and answer.choices[0].finish_reason == "length"


def test_max_completion_tokens_wins(chat: Ask) -> None:
    assert chat(max_tokens=3, max_completion_tokens=2).usage.completion_tokens == 2


def test_answer_ends_by_itself(chat: Ask) -> None:
    ended = chat("What is the capital of France?", max_tokens=40)
    assert ended.choices[0].finish_reason == "stop" and text_of(ended).endswith("Paris.")


def test_model_may_be_left_out(client: openai.OpenAI, model: str) -> None:
    answer = client.post(
        "/chat/completions", body={"messages": [user("Hi")], "max_tokens": 1}, cast_to=dict[str, object]
    )
    assert answer["model"] == model


OPTIONAL = [
    "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop", "seed", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "stream", "stream_options",
    "response_format", "tools", "tool_choice", "parallel_tool_calls", "user", "metadata", "store",
    "reasoning_effort", "service_tier", "min_tokens", "ignore_eos", "stop_token_ids", "bad_words",
    "allowed_token_ids", "include_stop_str_in_output", "skip_special_tokens", "structured_outputs", "guided_json",
    "chat_template_kwargs", "cache_salt", "priority", "echo", "continue_final_message", "add_generation_prompt",
    "return_token_ids", "prompt_logprobs", "truncate_prompt_tokens", "modalities", "audio", "prediction",
    "functions", "function_call", "web_search_options", "verbosity", "safety_identifier",
]  # fmt: skip


@pytest.mark.parametrize(
    "fields", [OPTIONAL, *(pytest.param([field], id=field, marks=pytest.mark.full) for field in OPTIONAL)]
)
def test_nulls_are_absent(chat: Ask, two_tokens: str, fields: list[str]) -> None:
    assert text_of(chat(**{"max_tokens": 2, **dict.fromkeys(fields)})) == two_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "someone"}, {"metadata": {"a": "b"}}, {"store": False}, {"service_tier": "auto"},
        {"safety_identifier": "x"}, {"prompt_cache_key": "x"}, {"parallel_tool_calls": True}, {"tools": []},
        {"n": 1}, {"top_p": 1}, {"response_format": {"type": "text"}}, {"logit_bias": {}}, {"stop": []},
    ],
    ids=str,
)  # fmt: skip
def test_fields_that_change_nothing(chat: Ask, two_tokens: str, fields: dict[str, Any]) -> None:
    assert text_of(chat(**{"max_tokens": 2, **fields})) == two_tokens


def prompt_tokens(chat: Ask, *messages: Any) -> int:
    return int(chat(messages=list(messages), max_tokens=1).usage.prompt_tokens)


def test_parts_are_joined(chat: Ask) -> None:
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    assert prompt_tokens(chat, {"role": "user", "content": parts}) == prompt_tokens(chat, user("Say hello."))


def test_system_message_is_read(chat: Ask) -> None:
    told = chat(messages=[{"role": "system", "content": "You are a pirate."}, user("Who are you?")], max_tokens=12)
    assert text_of(told) != text_of(chat("Who are you?", max_tokens=12))


def test_developer_is_a_system(chat: Ask) -> None:
    counts = {
        prompt_tokens(chat, {"role": role, "content": "You are a pirate."}, user("Hi"))
        for role in ("developer", "system")
    }
    assert len(counts) == 1


def test_conversation_of_calls_is_taken(chat: Ask) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    turns = [
        user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"},
    ]  # fmt: skip
    answer = chat(messages=turns, tools=[function(parameters=CITY)], tool_choice="none")
    assert answer.choices[0].message.content and answer.choices[0].message.tool_calls is None
    assert answer.usage.prompt_tokens > prompt_tokens(chat, user("Weather?"))


def test_last_message_is_continued(chat: Ask) -> None:
    turns = [user("What is the capital of France?"), {"role": "assistant", "content": "The capital of France is"}]
    continued = chat(messages=turns, continue_final_message=True, add_generation_prompt=False)
    assert text_of(continued).startswith(" Paris")
    echoed = chat(messages=turns, continue_final_message=True, add_generation_prompt=False, echo=True)
    assert text_of(echoed) == "The capital of France is" + text_of(continued)


def test_next_turn_is_cached(chat: Ask) -> None:
    turns = [user("Tell me about rivers, please, and about the sea into which they flow.")]
    first = chat(messages=turns, max_tokens=16)
    turns += [{"role": "assistant", "content": text_of(first)}, user("More.")]
    assert chat(messages=turns).usage.prompt_tokens_details.cached_tokens > 0


def test_salt_parts_the_cache(chat: Ask) -> None:
    question = "A question that only this test asks, so that nothing of it is cached beforehand, at all."
    cached = [
        chat(question, cache_salt=salt).usage.prompt_tokens_details.cached_tokens for salt in ("one", "one", "two")
    ]
    assert cached[1] > cached[0] == cached[2]


def test_token_ids_are_returned(chat: Ask) -> None:
    answer = chat(return_token_ids=True)
    assert len(answer.choices[0].token_ids) == 4
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens


def test_unknown_field_is_named(client: openai.OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=[user("Hi")], max_tokens=1, extra_body={"no_such_field": 1}  # type: ignore[list-item]
    )  # fmt: skip
    assert raw.headers["x-wllm-ignored"] == "no_such_field" and raw.parse().choices


def test_request_has_an_id(client: openai.OpenAI, model: str, chat: Ask) -> None:
    assert chat(max_tokens=1)._request_id
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=[user("Hi")], max_tokens=1, extra_headers={"X-Request-Id": "mine-7"}  # type: ignore[list-item]
    )  # fmt: skip
    assert raw.request_id == "mine-7"
