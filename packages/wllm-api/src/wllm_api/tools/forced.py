"""Calls that a request forces: the answer is JSON of a known form, whatever the family of the model."""

from __future__ import annotations

from collections.abc import Mapping

from wllm_api.grammars.schema_rules import rewritten
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


def _moved(schema: Mapping[str, object], place: str) -> Mapping[str, object]:
    def with_moved_reference(part: Mapping[str, object]) -> Mapping[str, object]:
        reference = part.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return part
        return {**part, "$ref": place + reference.removeprefix("#")}

    return rewritten(schema, with_moved_reference)
