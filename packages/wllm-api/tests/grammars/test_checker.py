"""What the checker says of a schema that cannot be compiled, and how long it takes to say so."""

from __future__ import annotations

import time
from typing import Any

import pytest

from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.errors import GrammarError
from wllm_api.grammars import Constraint, GrammarChecker


def refusal(schema: dict[str, Any]) -> str:
    checker = GrammarChecker(build_tokenizer().to_str())
    with pytest.raises(GrammarError) as caught:
        checker.check_now(Constraint("json", schema, "response_format"))
    return str(caught.value)


def test_the_place_of_an_error_is_told() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {"items": {"format": "nix"}}}}
    assert refusal(schema) == "Unknown format: nix (at /properties/b/items of the schema)."


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
