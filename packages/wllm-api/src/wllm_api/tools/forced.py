"""Calls that a request forces: the answer is JSON of a known form, whatever the family of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wllm_api.tools.call_form import Tools, arguments_schema
from wllm_api.tools.calls import begin, json_calls
from wllm_api.tools.parser import Script
from wllm_api.tools.sink import Sink
from wllm_api.tools.source import BLANK, Read, Source

Schema = dict[str, object]


def one_call(name: str) -> Script:
    """The script for an answer that is the arguments of `name`, see `arguments_schema`."""

    def script(source: Source, sink: Sink) -> Read[None]:
        yield from source.skip()
        begin(name, source, sink)
        yield from source.json_value(sink.arguments)
        yield from _end(source)

    return script


def some_calls(source: Source, sink: Sink) -> Read[None]:
    """The script for an answer that is a list of calls, see `calls_schema`."""
    yield from json_calls(source, sink, allowed=None, between=BLANK + "[,")
    yield from _end(source)


def _end(source: Source) -> Read[None]:
    # What follows the calls is no one's text.
    while (yield from source.peek()):
        source.discard()


def calls_schema(tools: Tools, *, max_calls: int | None) -> Schema:
    """The schema of a list of calls, at least one."""
    calls = [_call_schema(number, name, parameters) for number, (name, parameters) in enumerate(tools.items())]
    schema: Schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if max_calls is not None:
        schema["maxItems"] = max_calls
    return schema


def _call_schema(number: int, name: str, parameters: Mapping[str, object]) -> Schema:
    # References count from the root of a schema, which lies further out now.
    place = f"#/items/anyOf/{number}/properties/parameters"
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": _moved(arguments_schema(parameters), place)},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(value: object, place: str) -> object:
    if isinstance(value, Mapping):
        return {
            key: place + item.removeprefix("#")
            if key == "$ref" and isinstance(item, str) and item.startswith("#")
            else _moved(item, place)
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_moved(item, place) for item in value]
    return value
