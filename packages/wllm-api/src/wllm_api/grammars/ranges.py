"""Numbers above a whole one and below the next: the compiler would let the whole one in, though it is excluded."""

from __future__ import annotations

from typing import TypeGuard

from wllm_api.grammars.schema_rules import Schema, rewritten

# The least number above zero, and above others in proportion, that the compiler tells apart from them.
_ABOVE_ZERO = 1e-15
_ABOVE = 1e-11


def with_inner_bounds(schema: Schema) -> Schema:
    """The schema with a `minimum` in place of each `exclusiveMinimum` that would not be kept."""
    return rewritten(schema, _with_inner_bound)


def _with_inner_bound(part: Schema) -> Schema:
    low, least = part.get("exclusiveMinimum"), part.get("minimum")
    if low is True:  # as draft 4 writes it
        low = least
    tops = [top for name in ("maximum", "exclusiveMaximum") if _is_number(top := part.get(name))]
    if not _is_number(low) or low % 1 or not any(low < top < low + 1 for top in tops):
        return part
    bound = low + max(_ABOVE_ZERO, abs(low) * _ABOVE)
    kept = {name: value for name, value in part.items() if name != "exclusiveMinimum"}
    return {**kept, "minimum": max(bound, least) if _is_number(least) else bound}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
