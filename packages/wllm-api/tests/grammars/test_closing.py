"""Silent objects are closed, and no schema loses its last answer by it."""

from __future__ import annotations

from typing import Any

import pytest

from wllm_api.grammars.closing import closed

A: dict[str, Any] = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
CLOSED_A = {**A, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, CLOSED_A),
        ({"type": "array", "items": A}, {"type": "array", "items": CLOSED_A}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED_A, {"type": "null"}]}),
        ({"$ref": "#/$defs/x", "$defs": {"x": A}}, {"$ref": "#/$defs/x", "$defs": {"x": CLOSED_A}}),
        ({"allOf": [A]}, {"allOf": [CLOSED_A]}),
        ({"properties": {"b": A}}, {"properties": {"b": CLOSED_A}, "additionalProperties": False}),
        # A property may have any name, and data may look like a schema.
        ({"properties": {"properties": A}}, {"properties": {"properties": CLOSED_A}, "additionalProperties": False}),
        ({"const": A}, {"const": A}),
        ({"enum": [A], "default": A}, {"enum": [A], "default": A}),
    ],
)
def test_closed(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {}},
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "string"}},
        {**A, "patternProperties": {"^b": {}}},
        {**A, "required": ["a", "b"]},
        {**A, "minProperties": 2},
        {"allOf": [A, {"properties": {"b": {}}}]},
        {"properties": {"b": {}}, "anyOf": [A, {}]},
        {"required": ["b"], "oneOf": [A]},
        {"$ref": "#/$defs/x", "properties": {"b": {}}, "$defs": {"x": A}},
    ],
)
def test_left_alone(schema: Any) -> None:
    assert closed(schema) == schema
