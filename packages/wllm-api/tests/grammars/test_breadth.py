"""Which schemas are too broad for the compiler to follow, by what can come next at one place of an answer."""

from __future__ import annotations

import re
from typing import Any

import pytest

from wllm_api.errors import GrammarError
from wllm_api.grammars.breadth import MAX_OPTIONAL, MAX_WAYS, check_breadth


def an_object(count: int, name: str = "p", **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"{name}{number}": {"type": "string"} for number in range(count)}, **more}


def in_a_row(count: int) -> dict[str, Any]:
    """As many properties as may be left out, then one that may not, and so on."""
    return an_object(count, required=[f"p{number}" for number in range(MAX_OPTIONAL, count, MAX_OPTIONAL + 1)])


ALL_REQUIRED = an_object(2000, required=[f"p{number}" for number in range(2000)])
UNION = [an_object(10, f"p{number}_") for number in range(MAX_WAYS // 40 + 1)]


@pytest.mark.parametrize(
    ("schema", "place", "count"),
    [
        (an_object(2000), "the top", 2000),
        (an_object(MAX_OPTIONAL + 1), "the top", MAX_OPTIONAL + 1),
        ({"type": "array", "items": {"properties": {"a": an_object(999)}}}, "/items/properties/a", 999),
        ({"$ref": "#/$defs/a", "$defs": {"a": an_object(200)}}, "/$defs/a", 200),
        ({"allOf": [an_object(60, "a"), an_object(60, "b")]}, "the top", 120),
        (an_object(300, required=["p100", "p250"]), "the top", 149),
    ],
)
def test_too_many_properties_that_may_be_left_out(schema: dict[str, Any], place: str, count: int) -> None:
    words = f"^The object at {re.escape(place)} of the schema has {count:,} properties .* limit is {MAX_OPTIONAL},"
    with pytest.raises(GrammarError, match=words):
        check_breadth(schema)


@pytest.mark.parametrize(
    ("schema", "place", "count"),
    [
        ({"anyOf": UNION}, "the top", 4 * 10 * len(UNION)),
        ({"items": {"oneOf": UNION}}, "/items", 4 * 10 * len(UNION)),
        ({"anyOf": [{"const": number} for number in range(MAX_WAYS + 1)]}, "the top", MAX_WAYS + 1),
        ({**an_object(90), "anyOf": [an_object(1, f"q{number}") for number in range(5)]}, "the top", 5 * 4 * 91),
        ({"items": {"anyOf": [{"$ref": "#/$defs/a~1b"}] * 5}, "$defs": {"a/b": an_object(95)}}, "/items", 5 * 4 * 95),
    ],
    ids=["anyOf", "oneOf", "const", "beside", "references"],
)
def test_too_many_ways_to_begin(schema: dict[str, Any], place: str, count: int) -> None:
    words = f"^The alternatives at {place} of the schema begin in {count:,} ways.* the limit is {MAX_WAYS:,}."
    with pytest.raises(GrammarError, match=words):
        check_breadth(schema)


CHAIN = {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(5000)}


@pytest.mark.parametrize(
    "schema",
    [
        an_object(MAX_OPTIONAL),
        in_a_row(1000),
        ALL_REQUIRED,
        {"anyOf": UNION[:-1]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/nowhere"}, {}]}}},
        {"anyOf": [{"$ref": "#"}, {"$ref": "elsewhere"}, {"$ref": "#/$defs/a0"}], "$defs": CHAIN},
        {"enum": [f"text {number}" for number in range(10_000)]},
    ],
    ids=["optional", "rows", "required", "union", "loop", "chain", "enum"],
)
def test_not_too_broad(schema: dict[str, Any]) -> None:
    check_breadth(schema)
