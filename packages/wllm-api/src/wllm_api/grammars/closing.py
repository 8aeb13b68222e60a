"""Objects whose schema names properties and says nothing of others: an answer has the named ones only.

JSON Schema would let any others in. A small model then goes on to add some until its answer is cut, and clients that
make schemas of classes (instructor, LangChain) leave the word out. An answer without them keeps the same schema; who
wants more says `additionalProperties: true`. Where schemas are combined nothing is closed: one part may name what
another one does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from wllm_api.grammars.schema_rules import Schema, rewritten, subschemas

_OBJECT_WORDS = frozenset({"properties", "required", "additionalProperties", "patternProperties", "minProperties"})
_COMBINING_WORDS = frozenset({"allOf", "anyOf", "oneOf", "$ref"})


def closed(schema: Schema) -> Schema:
    """The schema with its silent objects closed; raises `GrammarError` for a wrong form."""
    if any(_combines(part) for _, part in subschemas(schema)):
        return schema
    return rewritten(schema, lambda part: {**part, "additionalProperties": False} if _is_silent(part) else part)


def _combines(part: Schema) -> bool:
    branches = part.get("allOf")
    together = isinstance(branches, list) and len(branches) > 1
    return together or bool(_COMBINING_WORDS & part.keys() and _OBJECT_WORDS & part.keys())


def _is_silent(part: Schema) -> bool:
    properties = part.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return False
    if "additionalProperties" in part or "patternProperties" in part:
        return False
    # What is asked for beyond the named properties has to have its place.
    required, least = part.get("required"), part.get("minProperties")
    all_named = not isinstance(required, list) or all(name in properties for name in required)
    return all_named and not (isinstance(least, int) and least > len(properties))
