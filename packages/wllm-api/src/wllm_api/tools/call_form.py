"""How the calls of a family are held to the schemas of the tools: where one begins, and its grammar from there on."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from wllm_api.tools.grammar_writer import GrammarWriter

# Parameter schemas by the name of the function.
Tools = Mapping[str, Mapping[str, object]]


class Begins(NamedTuple):
    """Regular expressions of an `Opening`."""

    begins: str
    in_thought: str
    at_start: str | None = None


class CallForm(ABC):
    """One object for all requests. `is_json`: a call is JSON, apart from what stands around it."""

    is_json: bool = False

    @abstractmethod
    def begins(self, names: str) -> Begins:
        """Where calls begin; `names` is an expression for the names of the tools."""

    @abstractmethod
    def rule(self, writer: GrammarWriter, tools: Tools, *, many: bool) -> str:
        """What follows the mark, for one call, or for `many` in a family that writes them behind one mark.

        Raises `NotHeld` for a schema that the family's notation cannot keep.
        """


def arguments_schema(parameters: Mapping[str, object]) -> dict[str, object]:
    """The schema of the arguments of one function: an object in any case."""
    kind = parameters.get("type")
    # They are never null, which a list of types may name too.
    among = isinstance(kind, list) and "object" in kind
    return {"type": "object", **parameters, **({"type": "object"} if among else {})}


class NotHeld(Exception):
    """The schema of the arguments says more than can be held to in this family's notation."""


def check_names(properties: Mapping[str, object], read: Callable[[str], str]) -> None:
    """Raise `NotHeld` for the name of a property that `read` makes another one of, as the family's parser would."""
    for name in properties:
        if read(name) != name:
            raise NotHeld(f"the name {name!r:.80} cannot be told in this model's notation of calls")


def any_of(texts: Sequence[str]) -> str:
    """A regular expression for one of `texts`."""
    return "(?:" + "|".join(re.escape(text) for text in texts) + ")"


def marked_begins(marks: Sequence[str], head: str) -> Begins:
    """Behind one of `marks`; in a thought only where `head` follows, an expression for the beginning of a call."""
    mark = f"(?P<mark>{any_of(marks)})"
    # Few blanks, since those of `head` come after them: two unbounded rows of the same are slow to refuse.
    return Begins(mark, rf"{mark}\s{{0,16}}(?:{head})")
