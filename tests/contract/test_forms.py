"""Structured output in every spelling, whole and streamed; forms that cannot be kept are refused."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

import jsonschema
import openai
import pytest
from contract.conftest import Ask
from contract.requests import CITY, joined, later, schema_form, text_of, user
from pydantic import BaseModel

NUMBERS = {
    "type": "object", "additionalProperties": False, "required": ["n", "ok"],
    "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}, "ok": {"type": "boolean"}},
}  # fmt: skip
LIST = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 2}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Thing(BaseModel):
    colour: Colour
    heavy: bool


@pytest.mark.parametrize(
    "schema", [NUMBERS, LIST, later(CITY), later({"const": 7}), later({"enum": ["x", None]})], ids=str
)
@pytest.mark.parametrize(
    "more", [pytest.param({}, id="loose"), pytest.param({"strict": True}, id="strict", marks=pytest.mark.full)]
)
def test_answer_keeps_its_schema(chat: Ask, schema: Any, more: dict[str, bool]) -> None:
    (choice,) = chat(response_format=schema_form(schema, **more), max_tokens=40).choices
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), schema)


def test_object_without_a_schema(chat: Ask) -> None:
    text = text_of(chat("Give a JSON object.", response_format={"type": "json_object"}, max_tokens=8))
    assert text.startswith("{")


def test_parsed_by_the_package(client: openai.OpenAI, model: str) -> None:
    messages: Any = [user("A red stone as JSON.")]
    answer = client.chat.completions.parse(model=model, messages=messages, response_format=Thing, max_tokens=60)
    assert isinstance(answer.choices[0].message.parsed, Thing)


def test_cut_answer_is_told_by_the_package(client: openai.OpenAI, model: str) -> None:
    messages: Any = [user("A red stone as JSON.")]
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=model, messages=messages, response_format=Thing, max_tokens=2)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"grammar": 'root ::= "ab" | "cd"'}}, "ab|cd"),
        ({"structured_outputs": {"json": {"enum": ["x", "y"]}}}, '"x"|"y"'),
        ({"guided_regex": "[a-c]{2}"}, "[a-c]{2}"),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"guided_json": {"const": 12}}, "12"),
        ({"guided_grammar": 'start: "p" | "q"'}, "p|q"),
    ],
    ids=str,
)
def test_other_spellings(chat: Ask, complete: Ask, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, text_of(chat(max_tokens=20, **fields)))
    assert re.fullmatch(pattern, complete(max_tokens=20, **fields).choices[0].text)


def test_each_choice_keeps_the_form(chat: Ask) -> None:
    answer = chat(n=3, temperature=2, seed=1, response_format=schema_form(NUMBERS), max_tokens=40)
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), NUMBERS)


def test_stream_keeps_the_form(chat: Ask) -> None:
    text = joined(chat(stream=True, temperature=1, seed=2, response_format=schema_form(NUMBERS), max_tokens=40))
    jsonschema.validate(json.loads(text), NUMBERS)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": schema_form({"type": "array", "uniqueItems": True})}, "uniqueItems"),
        ({"response_format": schema_form({"not": {}})}, "not"),
        ({"response_format": schema_form({"type": "strange"})}, "strange"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"structured_outputs": {"regex": "("}}, "regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": "no json"}, "guided_json"),
    ],
    ids=str,
)
def test_forms_that_cannot_be_kept_are_refused(chat: Ask, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        chat(**fields)
