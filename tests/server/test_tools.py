"""Forced tool calls of the real small model: streamed and whole they are the same, and fit their schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from server.running_server import RunningServer

USER: Any = [{"role": "user", "content": "Weather in Paris?"}]
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["city", "unit"],
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]}, "unit": {"type": "string", "enum": ["c", "f"]},
    },
}  # fmt: skip
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", [NAMED, "required"])
@pytest.mark.parametrize("strict", [{}, {"strict": True}])
def test_forced_call_fits_its_schema(server: RunningServer, choice: Any, strict: dict[str, bool]) -> None:
    """R18."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, **strict}}
    fields: Any = {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
    fields |= {"model": server.model(), "messages": USER, "max_tokens": 120}
    completions = server.client().chat.completions
    choices = [completions.create(**fields).choices[0]]
    with completions.stream(**fields) as stream:
        choices.append(stream.get_final_completion().choices[0])
    shown = []
    for one in choices:
        assert one.finish_reason == ("tool_calls" if choice == "required" else "stop")
        assert not one.message.content
        (call,) = one.message.tool_calls
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        shown.append(call.function.arguments)
    assert shown[0] == shown[1]


@pytest.mark.parametrize("choice", [NAMED, "required"])
def test_cut_call_is_no_text(server: RunningServer, choice: Any) -> None:
    """R18."""
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    for count in range(1, 12):
        answer = server.client().chat.completions.create(
            model=server.model(), messages=USER, tools=[tool], tool_choice=choice, max_tokens=count, temperature=0
        )
        (one,) = answer.choices
        assert not one.message.content
        if one.finish_reason != "length":
            assert one.message.tool_calls is not None
            json.loads(one.message.tool_calls[0].function.arguments)
