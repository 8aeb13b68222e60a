"""Schemas that ask for themselves are refused where no answer could end, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from wllm_api.errors import GrammarError
from wllm_api.grammars.endings import check_endings
from wllm_api.tools import calls_schema

TEXT = {"type": "string"}
SELF = {"$ref": "#/$defs/a"}


def of_itself(definition: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**SELF, "$defs": {"a": definition, **more}}


def an_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#"}, "the top"),
        (of_itself(SELF), "the top"),
        (of_itself({"$ref": "#/$defs/b"}, b=SELF), "the top"),
        (of_itself({"allOf": [TEXT, SELF]}), "the top"),
        (of_itself({"anyOf": [SELF, {"allOf": [SELF]}]}), "the top"),
        (of_itself({"oneOf": [SELF]}), "the top"),
        (of_itself(an_object("next", next=SELF)), "the top"),
        (of_itself({"type": "array", "items": SELF, "minItems": 1}), "the top"),
        (of_itself({"type": "array", "prefixItems": [TEXT, SELF], "minItems": 2}), "the top"),
        (an_object(next={"$ref": "#/definitions/b"}) | {"definitions": {"b": {"$ref": "#/definitions/b"}}}, "/def.*/b"),
        (
            an_object(next={"type": "array", "items": [{"$ref": "#"}], "minItems": 1}) | {"required": ["next"]},
            "the top",
        ),
        (of_itself(an_object("next", next=SELF) | {"type": ["object"]}), "the top"),
        (of_itself({"type": ["array"], "items": SELF, "minItems": 1}), "the top"),
        (of_itself({"type": "array", "items": [True], "additionalItems": SELF, "minItems": 2}), "the top"),
        (of_itself({"type": "object", "additionalProperties": SELF, "minProperties": 1}), "the top"),
        (of_itself({"type": "object", "additionalProperties": SELF, "required": ["b"]}), "the top"),
        ({"anyOf": [an_object("a", a={"$ref": "#/anyOf/0"}), TEXT]}, "/anyOf/0"),
        (calls_schema({"f": an_object("a", a={"$ref": "#"})}, max_calls=1), "the top"),
        ({"properties": {"x~/y": {"allOf": [{"$ref": "#/properties/x~0~1y"}]}}}, "/properties/x~0~1y"),
    ],
)
def test_without_end(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(GrammarError, match=f"^The schema at {place} asks for itself without end"):
        check_endings(schema)


@pytest.mark.parametrize(
    "schema",
    [
        of_itself(an_object(next=SELF)),
        of_itself(an_object("next", next={"anyOf": [SELF, {"type": "null"}]})),
        of_itself({"type": "array", "items": SELF}),
        of_itself({"type": "array", "prefixItems": [TEXT, SELF], "minItems": 1}),
        of_itself({"type": "array", "prefixItems": [True, SELF], "minItems": 1}),
        of_itself({"type": "object", "properties": {"a": TEXT}, "additionalProperties": SELF, "minProperties": 1}),
        {"anyOf": [{"$ref": f"#/anyOf/{step}"} for step in ("2", "01x", "\u00b2", "9" * 5000)]},
        of_itself({"anyOf": [SELF, TEXT]}),
        of_itself({"anyOf": [SELF, True]}),
        # Another type than the one that asks for itself.
        of_itself({"type": ["object", "null"], "properties": {"next": SELF}, "required": ["next"]}),
        of_itself({"properties": {"next": SELF}, "required": ["next"]}),
        # What is no pointer to a schema is not followed.
        {"$ref": "#anchor"},
        {"$ref": "elsewhere#/a"},
        {"$ref": "#/examples/0", "examples": [{"$ref": "#/examples/0"}]},
        of_itself({"$ref": "#/$defs/b"}, b=an_object("c", c={"$ref": "#/$defs/d"}), d=TEXT),
        {"$defs": {f"a{number}": {"$ref": f"#/$defs/a{number + 1}"} for number in range(5000)} | {"a5000": {}}},
    ],
)
def test_with_an_end(schema: dict[str, Any]) -> None:
    check_endings(schema)
