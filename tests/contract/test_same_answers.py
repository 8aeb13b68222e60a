"""One question has one answer, whichever API asks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import jsonschema
import ollama
import openai
import pytest
from contract.conftest import Ask
from contract.requests import CITY, function, schema_form, text_of, user

QUESTION = "What is the capital of France?"
GREEDY: Any = {"temperature": 0}
Texts = Callable[..., list[str]]


@pytest.fixture(scope="module")
def texts(chat: Ask, respond: Ask, message: Ask, llama: ollama.Client, model: str) -> Texts:
    """A function: the text of each API, for the fields that each has for one thing; those of chat come first."""

    def of_all(for_chat: Any, for_responses: Any, for_messages: Any, for_ollama: Any) -> list[str]:
        options: Any = {"temperature": 0, "num_predict": 40}
        return [
            text_of(chat(QUESTION, temperature=0, max_tokens=40, **for_chat)),
            respond(QUESTION, temperature=0, max_output_tokens=40, **for_responses).output_text,
            message(QUESTION, temperature=0, max_tokens=40, **for_messages).content[0].text,
            llama.chat(model, messages=[user(QUESTION)], options=options, **for_ollama).message.content or "",
            llama.generate(model, QUESTION, options=options, **for_ollama).response or "",
        ]

    return of_all


def test_text(texts: Texts) -> None:
    found = texts({}, {}, {}, {})
    assert "Paris" in found[0] and set(found) == {found[0]}


def test_form(texts: Texts) -> None:
    form = {"type": "json_schema", "schema": CITY}
    named = {"format": {**form, "name": "city"}}
    found = texts(
        {"response_format": schema_form(CITY)}, {"text": named}, {"output_config": {"format": form}}, {"format": CITY}
    )
    jsonschema.validate(json.loads(found[0]), CITY)
    assert set(found) == {found[0]}


def test_forced_call(chat: Ask, respond: Ask, message: Ask) -> None:
    flat = {"type": "function", "name": "get_weather", "parameters": CITY}
    claudes = {"name": "get_weather", "input_schema": CITY}
    one: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    (first,) = chat(QUESTION, tools=[function()], max_tokens=60, **GREEDY, **one).choices[0].message.tool_calls
    (second,) = respond(QUESTION, tools=[flat], max_output_tokens=60, **GREEDY, **one).output
    choice = {"type": "any", "disable_parallel_tool_use": True}
    (third,) = message(QUESTION, tools=[claudes], max_tokens=60, tool_choice=choice, **GREEDY).content
    calls = [first.function.arguments, second.arguments, json.dumps(third.input)]
    assert [json.loads(call) for call in calls] == [json.loads(calls[0])] * 3
    jsonschema.validate(third.input, CITY)


def test_usage(chat: Ask, respond: Ask, message: Ask, llama: ollama.Client, model: str) -> None:
    told = chat(QUESTION, max_tokens=40).usage
    answered = respond(QUESTION, max_output_tokens=40).usage
    said = message(QUESTION, max_tokens=40).usage
    shown = llama.chat(model, messages=[user(QUESTION)], options={"temperature": 0, "num_predict": 40})
    assert told.prompt_tokens == answered.input_tokens == said.input_tokens + said.cache_read_input_tokens
    assert told.prompt_tokens == shown.prompt_eval_count
    assert told.completion_tokens == answered.output_tokens == said.output_tokens == shown.eval_count


def test_going_on_is_sending_all_again(client: openai.OpenAI, respond: Ask) -> None:
    first = respond(QUESTION, max_output_tokens=20)
    second = respond("And of Italy?", previous_response_id=first.id, max_output_tokens=12)
    turns = [user(QUESTION), *first.output, user("And of Italy?")]
    assert second.output_text == respond(turns, max_output_tokens=12, store=False).output_text != ""


def test_a_long_limit_is_the_rest_of_the_context(claude: anthropic.Anthropic, model: str, chat: Ask) -> None:
    """Anthropic's clients always send a limit, often one of a larger model."""
    messages: Any = [user(QUESTION)]
    answer: Any = claude.messages.create(model=model, max_tokens=100_000, messages=messages)
    assert answer.stop_reason == "end_turn"
    assert answer.content[0].text == text_of(chat(QUESTION, max_tokens=40))
