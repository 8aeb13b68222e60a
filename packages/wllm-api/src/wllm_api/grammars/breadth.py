"""In how many ways an answer may go on at one place of a schema: its compiler follows all of them at once.

It has limits for that which an answer only meets on its way, so what comes near them is refused here. The limits below
hold for the tokenizers of all families, several such objects inside of each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from wllm_api.errors import GrammarError
from wllm_api.grammars.schema_rules import MAX_DEPTH, Schema, listed, referred, subschemas

MAX_OPTIONAL = 100
MAX_WAYS = 1_800
# What the compiler has at work for each property that may come next.
_WAYS_OF_OPTIONAL = 4


def check_breadth(schema: Schema) -> None:
    """Raise `GrammarError` for an object or for alternatives that are too broad, with the place and the number."""
    breadth = _Breadth(schema)
    for place, part in subschemas(schema):
        where = f"at {place or 'the top'} of the schema"
        if (optional := breadth.optional(part)) > MAX_OPTIONAL:
            raise GrammarError(
                f"The object {where} has {optional:,} properties in a row that 'required' does not name; the limit is "
                f"{MAX_OPTIONAL}, as any of them may come next. Require more of them, or group them in smaller objects."
            )
        if (ways := breadth.ways(part)) > MAX_WAYS:
            raise GrammarError(
                f"The alternatives {where} begin in {ways:,} ways, where a property that may be left out counts as "
                f"{_WAYS_OF_OPTIONAL}; the limit is {MAX_WAYS:,}. Send fewer, or require more of their properties."
            )


class _Breadth:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._known: dict[int, int] = {}

    def optional(self, part: Schema) -> int:
        """The most properties in a row that may be left out, those of `allOf` together with the part's own."""
        properties, required = part.get("properties"), part.get("required")
        named = set(map(str, required)) if isinstance(required, list) else set()
        longest = row = 0
        for name in properties if isinstance(properties, Mapping) else ():
            row = 0 if name in named else row + 1
            longest = max(longest, row)
        return longest + sum(self.optional(one) for one in listed(part, "allOf"))

    def ways(self, part: Schema, depth: int = 0) -> int:
        """In how many ways a value may begin; from `MAX_DEPTH` references and alternatives on, in one."""
        if depth == MAX_DEPTH:
            return 1
        if id(part) not in self._known:
            self._known[id(part)] = 1  # of a part that holds itself
            own = _WAYS_OF_OPTIONAL * self.optional(part)
            alternatives = [*listed(part, "anyOf"), *listed(part, "oneOf")]
            target = referred(self._schema, part)
            inner = [own + self.ways(one, depth + 1) for one in alternatives]
            inner += [self.ways(target, depth + 1)] if target is not None else []
            self._known[id(part)] = max(own, sum(inner), 1)
        return self._known[id(part)]
