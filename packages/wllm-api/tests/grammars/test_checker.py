"""What the checker says of a schema that cannot be compiled, and how long it takes to say so."""

from __future__ import annotations

import time

import pytest

from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.errors import GrammarError
from wllm_api.grammars import Constraint, GrammarChecker
from wllm_api.grammars.constraint import Kind


def refusal(value: object, kind: Kind = "json") -> str:
    checker = GrammarChecker(build_tokenizer().to_str())
    with pytest.raises(GrammarError) as caught:
        checker.check_now(Constraint(kind, value, "response_format"))
    return str(caught.value)


def test_the_place_of_an_error_is_told() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {"items": {"format": "nix"}}}}
    assert refusal(schema) == "Unknown format: nix (at /properties/b/items of the schema)."


LONG = "x" * 50_000


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("json", {"anyOf": [{}] * 500_000}, "has more than 20,000 schemas inside"),
        ("json", {"properties": {LONG: {"anyOf": [{"not": {}}] * 10_000}}}, "The keyword 'not' at /properties/xxx"),
        ("json", {"properties": {"a": {LONG: 1}}}, "at /properties/a of the schema is not supported"),
        ("json", {"type": "object", "required": [LONG], "additionalProperties": False}, "Unsatisfiable schema"),
        ("json", {"type": LONG}, "Invalid type: xxx"),
        ("regex", "(" * 100_000, "invalid regex"),
        ("grammar", f"start: {LONG}", 'unknown name: "xxx'),
        ("grammar", LONG, "neither as Lark nor as GBNF"),
    ],
)
def test_a_refusal_is_short_and_quick(kind: Kind, value: object, words: str) -> None:
    """Places and messages of the compiler may repeat what was sent."""
    start = time.perf_counter()
    text = refusal(value, kind)
    assert words in text and len(text) < 1000
    assert time.perf_counter() - start < 2


def test_looking_for_the_place_ends_before_the_time_for_the_whole_check() -> None:
    """Each part is compiled with all definitions, which takes its time when there are many."""
    part = {"type": "object", "properties": {f"p{number}": {"pattern": "^[a-z]{3,40}$"} for number in range(12)}}
    names = [f"d{number}" for number in range(150)]
    schema = {
        "type": "object",
        "properties": {"last": {"format": "nix"}, **{name: {"$ref": f"#/$defs/{name}"} for name in names}},
        "required": names,
        "$defs": {name: {**part, "required": list(part["properties"])} for name in names},
    }
    start = time.perf_counter()
    assert refusal(schema).startswith("Unknown format: nix")
    assert time.perf_counter() - start < 3.5
