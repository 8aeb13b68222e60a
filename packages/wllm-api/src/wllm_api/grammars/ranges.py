"""Numbers between a whole one and the next: the compiler would let the whole one in, though it is excluded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeGuard

from wllm_api.grammars.schema_rules import Schema, rewritten, subschemas

# The least number above zero, and above others in proportion, that the compiler tells apart from them.
_ABOVE_ZERO = 1e-15
_ABOVE = 1e-11


class _Side(NamedTuple):
    excluded: str
    included: str
    inwards: int
    stricter: Callable[[float, float], float]


_SIDES = (_Side("exclusiveMinimum", "minimum", 1, max), _Side("exclusiveMaximum", "maximum", -1, min))


def with_inner_bounds(schema: Schema) -> Schema:
    """The schema with an included bound in place of each excluded one that would not be kept."""
    # Schemas are combined in many ways, so any bound may go with any other.
    names = [name for side in _SIDES for name in (side.excluded, side.included)]
    bounds = [value for _, part in subschemas(schema) for name in names if _is_number(value := part.get(name))]
    for side in _SIDES:
        schema = rewritten(schema, partial(_with_inner_bound, side=side, bounds=bounds))
    return schema


def _with_inner_bound(part: Schema, side: _Side, bounds: list[int | float]) -> Schema:
    excluded, included = part.get(side.excluded), part.get(side.included)
    if excluded is True:  # as draft 4 writes it
        excluded = included
    if not _is_number(excluded) or excluded % 1:
        return part
    if not any(0 < (bound - excluded) * side.inwards < 1 for bound in bounds):
        return part
    inner = excluded + side.inwards * max(_ABOVE_ZERO, abs(excluded) * _ABOVE)
    kept = {name: value for name, value in part.items() if name != side.excluded}
    return {**kept, side.included: side.stricter(inner, included) if _is_number(included) else inner}


def _is_number(value: object) -> TypeGuard[int | float]:
    # Larger ones have no fraction.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53
