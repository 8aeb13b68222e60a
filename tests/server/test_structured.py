"""Structured output of the real small model: every ended answer parses and keeps its schema, alone and in company."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from server.running_server import RunningServer

USER: Any = [{"role": "user", "content": "Give me an example as JSON."}]
BEHIND_REFERENCES = {
    "type": "object", "additionalProperties": False, "required": ["colour", "size"],
    "properties": {"colour": {"$ref": "#/$defs/Colour"}, "size": {"$ref": "#/definitions/Size"}},
    "$defs": {"Colour": {"enum": ["red", "green"]}}, "definitions": {"Size": {"type": "integer", "enum": [1, 2]}},
}  # fmt: skip
BOUNDS = {
    "type": "object", "additionalProperties": False, "required": ["p", "n", "list"], "properties": {
        "p": {"type": "number", "minimum": 0, "maximum": 1},
        "n": {"type": "integer", "minimum": -3, "exclusiveMaximum": 12},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 6},
                 "minItems": 2, "maxItems": 3},
    },
}  # fmt: skip
TEXTS = {
    "type": "object", "additionalProperties": False, "required": ["s", "d", "m"], "properties": {
        "s": {"type": "string", "pattern": "^[a-c]{2,4}$"}, "d": {"type": "string", "format": "date"},
        "m": {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10},
    },
}  # fmt: skip
SCALARS = {"type": "array", "prefixItems": [{"const": "é"}, {"type": ["boolean", "null"]}], "items": False}


def form(schema: object) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def ask(server: RunningServer, **fields: Any) -> Any:
    fields = {"max_tokens": 100, "temperature": 1.5} | fields
    return server.client().chat.completions.create(model=server.model(), messages=USER, **fields)


@pytest.mark.parametrize("schema", [BEHIND_REFERENCES, BOUNDS, TEXTS, SCALARS])
def test_answers_keep_their_schema(server: RunningServer, schema: dict[str, Any]) -> None:
    """R28, R29."""
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda seed: ask(server, seed=seed, response_format=form(schema)), range(5)))
    texts = {answer.choices[0].message.content for answer in answers}
    assert len(texts) > 1
    for answer in answers:
        (choice,) = answer.choices
        value = json.loads(choice.message.content)
        assert choice.finish_reason == "stop"
        jsonschema.validate(value, schema)
        if "required" in schema:
            assert list(value) == schema["required"]
        # White space is bounded.
        assert not re.search(r"\n\s*\n|\s{19}", choice.message.content)


def test_bounds_that_cannot_be_kept_are_refused(server: RunningServer) -> None:
    """R29: `uniqueItems`."""
    properties: Any = BOUNDS["properties"]
    schema = {**BOUNDS, "properties": {**properties, "list": {**properties["list"], "uniqueItems": True}}}
    with pytest.raises(openai.BadRequestError, match=r"uniqueItems.* at /properties/list"):
        ask(server, response_format=form(schema))


def test_a_stream_is_the_whole_answer(server: RunningServer) -> None:
    options: Any = {"seed": 7, "n": 3, "response_format": form(BOUNDS)}
    whole = [choice.message.content for choice in ask(server, **options).choices]
    parts = ["", "", ""]
    for chunk in ask(server, stream=True, **options):
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
    assert parts == whole and len(set(whole)) > 1


def test_free_answers_beside_one_with_a_schema_are_their_own(server: RunningServer) -> None:
    alone = ask(server, temperature=0, max_tokens=30).choices[0].message.content
    with ThreadPoolExecutor(4) as pool:
        bound = [pool.submit(ask, server, seed=seed, response_format=form(BOUNDS)) for seed in range(2)]
        free = [pool.submit(ask, server, temperature=0, max_tokens=30) for _ in range(2)]
    assert [one.result().choices[0].message.content for one in free] == [alone, alone]
    for one in bound:
        jsonschema.validate(json.loads(one.result().choices[0].message.content), BOUNDS)


@pytest.mark.parametrize(("outputs", "pattern"), [
    ({"regex": "[0-9]{3}-[a-z]{1,3}"}, "[0-9]{3}-[a-z]{1,3}"), ({"choice": ["yes", 'no\n"q"']}, 'yes|no\n"q"'),
    ({"grammar": 'root ::= "a" | "b" | "c" "d"'}, "a|b|cd"), ({"grammar": "start: /x+/ \"y\""}, "x+y"),
    ({"json": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False},
      "disable_any_whitespace": True}, '\\{"a":1\\}'),
])  # fmt: skip
def test_other_forms(server: RunningServer, outputs: dict[str, Any], pattern: str) -> None:
    answer = ask(server, n=3, seed=1, logprobs=True, extra_body={"structured_outputs": outputs})
    for choice in answer.choices:
        if choice.finish_reason == "stop":
            assert re.fullmatch(pattern, choice.message.content)
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert "stop" in {choice.finish_reason for choice in answer.choices}
