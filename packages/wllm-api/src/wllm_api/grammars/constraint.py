"""`Constraint`: the form that a request wants its answer to have."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["json", "json_object", "regex", "choice", "grammar"]


class Constraint(NamedTuple):
    """`value` is a JSON schema (an object, or its text), None, a regular expression, a list of texts, or a grammar.

    `param` is the request's field. `compact`: JSON without white space.
    """

    kind: Kind
    value: object
    param: str
    compact: bool = False
