"""Which JSON schemas can be kept: a keyword is enforced, says nothing about the value, or is refused with its place.

Owns the form of schemas only; what their values mean (a pattern, a reference, bounds that contradict each other) is
for the compiler to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from wllm_api.errors import GrammarError

MAX_DEPTH = 64
MAX_PARTS = 20_000
_MAX_PLACE = 300
_ENFORCED = frozenset({
    "$defs", "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "definitions", "enum",
    "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties", "maximum",
    "minItems", "minLength", "minProperties", "minimum", "multipleOf", "oneOf", "pattern", "patternProperties",
    "prefixItems", "properties", "required", "type",
})  # fmt: skip
_SAYS_NOTHING = frozenset({
    "$anchor", "$comment", "$id", "$schema", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema",
    "default", "deprecated", "description", "discriminator", "enumNames", "example", "examples", "externalDocs", "id",
    "nullable", "propertyOrdering", "readOnly", "strict", "title", "writeOnly", "xml",
})  # fmt: skip
# These hold schemas by name, in a list, or one.
_NAMED = ("$defs", "definitions", "properties", "patternProperties")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("additionalItems", "additionalProperties", "items")

Schema = Mapping[str, object]


def check_schema(schema: object) -> Schema:
    """The schema, if its form is right and all its keywords can be kept; raises `GrammarError` with the place."""
    if not isinstance(schema, Mapping):
        raise GrammarError(f"The schema must be a JSON object, but is {_named(schema)}. Send an object.")
    for place, part in subschemas(schema):
        for keyword, value in part.items():
            if keyword == "required" and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
                raise GrammarError(f"{place}/required of the schema must be a list of strings, but is {_named(value)}.")
            if keyword == "enum" and not isinstance(value, list):
                raise GrammarError(f"{place}/enum of the schema must be a list, but is {_named(value)}.")
            if keyword in _ENFORCED or keyword in _SAYS_NOTHING:
                continue
            if keyword == "uniqueItems" and value is False:
                continue
            if keyword.startswith("x-") and keyword != "x-guidance":
                continue
            raise GrammarError(
                f"The keyword {keyword!r:.80} at {place or 'the top'} of the schema is not supported, and is not "
                "ignored. Remove it, or check the answer yourself."
            )
    return schema


def subschemas(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Each schema inside, itself first, with its place as a JSON pointer; raises `GrammarError` for a wrong form."""
    pending: deque[tuple[str, object, int]] = deque([("", schema, 0)])
    count = 0
    while pending:
        place, part, depth = pending.popleft()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            raise GrammarError(f"A schema must be an object, but at {place} of the schema is {_named(part)}.")
        if depth > MAX_DEPTH:
            raise GrammarError(f"The schema is nested more than {MAX_DEPTH} deep, at {place}. Send a flatter one.")
        yield place, part
        for keyword, value in part.items():
            for step, child in _children(keyword, value, f"{place}/{keyword}"):
                count += 1
                if count > MAX_PARTS:
                    raise GrammarError(f"The schema has more than {MAX_PARTS:,} schemas inside. Send a smaller one.")
                # Names may be long, and each place inside of one would hold it again.
                pending.append((f"{place}/{keyword}{step}"[:_MAX_PLACE], child, depth + 1))


def listed(part: Schema, keyword: str) -> list[Schema]:
    """The schemas in the list of a keyword, without true and false."""
    value = part.get(keyword)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def referred(schema: Schema, part: Schema) -> Schema | None:
    """What `$ref` of a part refers to; None for no reference, and for one that is not a pointer into the schema."""
    reference = part.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: object = schema
    for step in reference.split("/")[1:]:
        if isinstance(found, list):
            inside = step.isascii() and step.isdecimal() and len(step) < 6 and int(step) < len(found)
            found = found[int(step)] if inside else None
        else:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) and (reference == "#" or "/" in reference) else None


def without_no_ops(schema: Schema) -> Schema:
    """The schema without `uniqueItems: false`, which asks for nothing and which the compiler does not know."""
    return rewritten(
        schema, lambda part: {name: part[name] for name in part if name != "uniqueItems" or part[name] is not False}
    )


def rewritten(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """The schema with `change` applied to each schema inside, itself too; data that looks like schemas stays."""

    def inside(value: object) -> object:
        return rewritten(value, change) if isinstance(value, Mapping) else value

    kept = dict(change(schema))
    for name in _NAMED:
        if isinstance(value := kept.get(name), Mapping):
            kept[name] = {key: inside(one) for key, one in value.items()}
    for name in (*_LISTED, *_SINGLE):
        if name in kept:
            value = kept[name]
            kept[name] = [inside(one) for one in value] if isinstance(value, list) else inside(value)
    return kept


def _children(keyword: str, value: object, place: str) -> Iterator[tuple[str, object]]:
    if keyword in _NAMED:
        if not isinstance(value, Mapping):
            raise GrammarError(f"{place} of the schema must be an object, but is {_named(value)}.")
        for name, child in value.items():
            yield "/" + name.replace("~", "~0").replace("/", "~1"), child
    elif keyword in _LISTED:
        if not isinstance(value, list) or not value:
            raise GrammarError(f"{place} of the schema must be a list of schemas, but is {_named(value)}.")
        yield from ((f"/{index}", child) for index, child in enumerate(value))
    elif keyword in _SINGLE:
        if isinstance(value, list) and keyword == "items":
            yield from ((f"/{index}", child) for index, child in enumerate(value))
        else:
            yield "", value


def _named(value: object) -> str:
    if value == []:
        return "an empty list"
    names = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else "an object")
