"""Schemas that ask for themselves without end: an answer to one would go on until it is cut, or find no way on.

References that are not pointers into the schema are taken to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wllm_api.errors import GrammarError
from wllm_api.grammars.schema_rules import Schema, listed, referred, subschemas


def check_endings(schema: Schema) -> None:
    """Raise `GrammarError` for a schema inside that no value fits that has an end, with its place."""
    places = {id(part): place for place, part in reversed(list(subschemas(schema)))}
    # Of each schema, how many of its needs are not known to end, and which needs (of a schema, by number) wait for it.
    missing = dict.fromkeys(places, 0)
    waiting: dict[int, list[tuple[int, int]]] = {}
    for _, part in subschemas(schema):
        needs = [need for need in _needs(schema, part) if all(id(one) in places for one in need)]
        missing[id(part)] = len(needs)
        for number, need in enumerate(needs):
            for one in need:
                waiting.setdefault(id(one), []).append((id(part), number))
    ending = [number for number, count in missing.items() if not count]
    met: set[tuple[int, int]] = set()
    while ending:
        for key in waiting.get(ending.pop(), []):
            if key not in met:
                met.add(key)
                missing[key[0]] -= 1
                if not missing[key[0]]:
                    ending.append(key[0])
    endless = [places[number] for number, count in missing.items() if count]
    if endless:
        raise GrammarError(
            f"The schema at {min(endless, key=len) or 'the top'} asks for itself without end, so that no answer could "
            "be complete. Let it end, by a property that is not required, a shorter list or an alternative."
        )


def _needs(schema: Schema, part: Schema) -> Iterator[list[Schema]]:
    # What each value of the schema holds or has to fit: one of a list.
    if (target := referred(schema, part)) is not None:
        yield [target]
    for one in listed(part, "allOf"):
        yield [one]
    for keyword in ("anyOf", "oneOf"):
        branches = part.get(keyword)
        if isinstance(branches, list) and all(isinstance(one, Mapping) for one in branches):
            yield branches
    kind = part.get("type")
    only = kind[0] if isinstance(kind, list) and len(kind) == 1 else kind
    if only == "object":
        inside = _needed_properties(part)
    elif only == "array":
        inside = _needed_items(part)
    else:
        inside = []
    yield from ([one] for one in inside if isinstance(one, Mapping))


def _needed_properties(part: Schema) -> list[object]:
    required, properties = part.get("required"), part.get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    others = None if part.get("patternProperties") else part.get("additionalProperties")
    needed = (
        [named.get(name, others) for name in required if isinstance(name, str)] if isinstance(required, list) else []
    )
    least = part.get("minProperties")
    if isinstance(least, int) and least > len(named):
        needed.append(others)
    return needed


def _needed_items(part: Schema) -> list[object]:
    least, items, prefix = part.get("minItems"), part.get("items"), part.get("prefixItems")
    if not isinstance(least, int) or least < 1:
        return []
    first = [*(prefix if isinstance(prefix, list) else []), *(items if isinstance(items, list) else [])]
    others = part.get("additionalItems") if isinstance(items, list) else items
    return [*first[:least], *([others] if least > len(first) else [])]
