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


@pytest.mark.parametrize(("choice", "counts"), [(NAMED, (1, 4, 11)), ("required", (1, 7, 20))])
def test_cut_call_is_no_text(server: RunningServer, choice: Any, counts: tuple[int, ...]) -> None:
    """R18: wherever the limit cuts, what came of the call is a call, whole and streamed."""
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    fields: Any = {"model": server.model(), "messages": USER, "tools": [tool], "tool_choice": choice, "temperature": 0}
    completions = server.client().chat.completions
    begun = []
    for count in counts:
        (one,) = completions.create(**fields, max_tokens=count).choices
        assert not one.message.content and one.finish_reason == "length"
        calls = [(call.function.name, call.function.arguments) for call in one.message.tool_calls or ()]
        name, arguments = "", ""
        for chunk in completions.create(**fields, max_tokens=count, stream=True):
            assert not chunk.choices[0].delta.content
            for piece in chunk.choices[0].delta.tool_calls or ():
                name += piece.function.name or ""
                arguments += piece.function.arguments
        assert calls == ([(name, arguments)] if name else [])
        begun += calls
    assert begun and begun[-1][0] == "get_weather" and begun[-1][1].startswith("{")


SAID: Any = [{"role": "user", "content": "Say it again."}, {"role": "assistant", "content": "<tool_call>\n" * 8}]
GO_ON = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize("parallel", [True, False])
def test_call_of_its_own_accord_fits_its_schema(server: RunningServer, parallel: bool) -> None:
    """The model repeats the mark; the grammar that begins there makes a call of what follows."""
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, "strict": not parallel}}
    fields: Any = {"model": server.model(), "messages": SAID, "tools": [tool], "temperature": 0, "max_tokens": 60}
    fields |= {"parallel_tool_calls": parallel, "extra_body": GO_ON}
    completions = server.client().chat.completions
    whole = completions.create(**fields).choices[0]
    calls = whole.message.tool_calls or []
    assert calls and whole.finish_reason == ("length" if parallel else "tool_calls")
    assert len(calls) == 1 or parallel
    for call in calls[: -1 if parallel else None]:
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    streamed: dict[int, str] = {}
    for chunk in completions.create(**fields, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            streamed[piece.index] = streamed.get(piece.index, "") + piece.function.arguments
    assert list(streamed.values()) == [call.function.arguments for call in calls]


def test_free_answer_is_what_it_is_without_tools(server: RunningServer) -> None:
    """A grammar that never begins changes no answer: the same prompt as a plain completion goes on the same way."""
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    say: Any = {"model": server.model(), "temperature": 0, "max_tokens": 24}
    hello: Any = [{"role": "user", "content": "Say hello in three languages."}]
    client = server.client()
    told = client.chat.completions.create(messages=hello, tools=[tool], extra_body={"return_token_ids": True}, **say)
    plain = client.completions.create(prompt=told.model_extra["prompt_token_ids"], **say)  # type: ignore[index]
    assert told.choices[0].message.content == plain.choices[0].text
    assert told.usage is not None and told.usage.completion_tokens > 3
