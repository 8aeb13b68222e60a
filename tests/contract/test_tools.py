"""Tools: forced calls fit their schema, the round trip works, what makes no sense is refused."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import openai
import pytest
from contract.conftest import Ask
from contract.requests import CITY, function, text_of, user
from pydantic import BaseModel

TIME = function("get_time", {"type": "object", "properties": {"zone": {"enum": ["utc"]}}, "required": ["zone"],
                             "additionalProperties": False})  # fmt: skip
WEATHER = function()
NAMED: Any = {"type": "function", "function": {"name": "get_time"}}


class GetWeather(BaseModel):
    city: Literal["Paris", "Rome"]


def ask(chat: Ask, **fields: Any) -> Any:
    return chat("Weather in Paris?", **{"tools": [WEATHER, TIME], "max_tokens": 60, **fields})


@pytest.mark.parametrize(
    ("choice", "names", "reason"),
    [
        ("required", {"get_weather", "get_time"}, "tool_calls"),
        (NAMED, {"get_time"}, "stop"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
            {"get_time"},
            "tool_calls",
        ),
    ],
    ids=["required", "named", "allowed"],
)
def test_forced_call(chat: Ask, choice: Any, names: set[str], reason: str) -> None:
    (answer,) = ask(chat, tool_choice=choice, parallel_tool_calls=False).choices
    assert answer.finish_reason == reason and not answer.message.content
    (call,) = answer.message.tool_calls
    assert call.type == "function" and call.id and call.function.name in names
    schema = {"get_weather": CITY, "get_time": TIME["function"]["parameters"]}[call.function.name]
    jsonschema.validate(json.loads(call.function.arguments), schema)


def test_calls_of_two_answers_have_two_ids(chat: Ask) -> None:
    calls = [ask(chat, tool_choice=NAMED).choices[0].message.tool_calls[0] for _ in range(2)]
    assert calls[0].id != calls[1].id and calls[0].function == calls[1].function


def test_no_call_when_none_is_wanted(chat: Ask) -> None:
    (answer,) = ask(chat, tool_choice="none", max_tokens=4).choices
    assert answer.message.tool_calls is None and answer.message.content


def test_function_without_parameters(chat: Ask) -> None:
    bare: Any = {"type": "function", "function": {"name": "now"}}
    (call,) = ask(chat, tools=[bare], tool_choice="required").choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {}


def test_parsed_by_the_package(client: openai.OpenAI, model: str) -> None:
    tool = openai.pydantic_function_tool(GetWeather)
    messages: Any = [user("Weather in Paris?")]
    answer = client.chat.completions.parse(
        model=model, messages=messages, tools=[tool], tool_choice="required", max_tokens=60
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, GetWeather)


def test_round_trip(chat: Ask) -> None:
    first = ask(chat, tool_choice=NAMED).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "12:00"}
    turns = [user("What time is it?"), first.model_dump(exclude_none=True), result]
    assert text_of(chat(messages=turns, tools=[TIME], tool_choice="none"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "absent"}}}, "absent"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "strange"}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [function("bad name")], "tool_choice": "required"}, "name"),
        ({"tools": [function(parameters={"not": {}})], "tool_choice": "required"}, "not"),
        ({"tools": "none"}, "tools"),
    ],
    ids=str,
)
def test_refused(chat: Ask, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        ask(chat, **fields)
