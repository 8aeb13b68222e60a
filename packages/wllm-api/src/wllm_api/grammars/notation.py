"""Writes a constraint in the notation of llguidance, always as a list of grammars in JSON. Compiles nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llguidance import LLMatcher, grammar_from

from wllm_api.errors import GrammarError
from wllm_api.grammars.breadth import check_breadth
from wllm_api.grammars.closing import closed
from wllm_api.grammars.constraint import Constraint
from wllm_api.grammars.endings import check_endings
from wllm_api.grammars.ranges import with_inner_bounds
from wllm_api.grammars.schema_rules import Schema, check_schema, without_no_ops
from wllm_sched.grammar import Grammar

MAX_CHARACTERS = 256 * 1024
MAX_CHOICES = 4096
# Between the parts of JSON: nothing, one space, or a line break with an indent. Left to itself, a small model fills an
# answer with line breaks.
_WHITE_SPACE = r"( |\n( {0,16}|\t{0,4}))?"


def grammar_of(constraint: Constraint) -> Grammar:
    """The grammar; raises `GrammarError` for a value of the wrong form."""
    match constraint.kind:
        case "json_object":
            grammar = schema_grammar({"type": "object"}, compact=constraint.compact)
        case "json":
            grammar = schema_grammar(_schema(constraint.value), compact=constraint.compact)
        case "regex":
            grammar = Grammar(LLMatcher.grammar_from_regex(_text(constraint.value, "a regular expression")))
        case "choice":
            grammar = _of_lark(_choices(constraint.value))
        case "grammar":
            grammar = _free_grammar(_text(constraint.value, "a grammar"))
    return grammar


def schema_grammar(schema: object, *, compact: bool = False) -> Grammar:
    """The grammar of a JSON schema whose form was checked; raises `GrammarError` for values that cannot be held."""
    try:
        # Numbers that are none, halves of characters: not everything that Python reads as JSON is JSON.
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        if len(text) > MAX_CHARACTERS:
            raise GrammarError(f"The schema has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}. Send less.")
        converted = LLMatcher.grammar_from_json_schema(text, overrides=_options(compact=compact))
    except GrammarError:
        raise
    except (ValueError, RecursionError) as error:
        problem = str(error).partition(" at line ")[0]
        raise GrammarError(f"The schema holds a value that no answer can be held to: {problem}.") from None
    return Grammar(converted, bounds_numbers=True)


def kept_schema(schema: object) -> Schema:
    """The schema as answers are held to it; raises `GrammarError` for one that cannot be kept, with the place."""
    checked = check_schema(schema)
    check_breadth(checked)
    check_endings(checked)
    return closed(with_inner_bounds(without_no_ops(checked)))


def parts_of(grammar: Grammar) -> list[dict[str, Any]]:
    """The grammars that one consists of, the first of which is where an answer begins."""
    parts: list[dict[str, Any]] = json.loads(grammar.text)["grammars"]
    return parts


def spelled_out(grammar: Grammar) -> Grammar:
    """The grammar without the compiler's shortcut for text that is the only way on.

    The shortcut takes names of special tokens in such text for the tokens, which are not allowed.
    """
    first, *others = parts_of(grammar)
    name = f"whole_{len(others)}"  # of none of the others, should one of them be spelled out too
    start = {"lark_grammar": f'%llguidance {{"no_forcing": true}}\nstart: @{name}'}
    return replace(grammar, text=_joined([start, {**first, "name": name}, *others]))


def _of_lark(text: str) -> Grammar:
    return Grammar(_joined([{"lark_grammar": text}]))


def _joined(parts: Sequence[Mapping[str, object]]) -> str:
    return json.dumps({"grammars": parts}, ensure_ascii=False)


def with_options(schema: Mapping[str, object]) -> dict[str, object]:
    """A JSON schema whose form was checked, as a part of a larger grammar."""
    return {**schema, "x-guidance": _options(compact=False)}


def _options(*, compact: bool) -> Any:
    # Written out one by one, because a schema can hold such options too, and these are stronger.
    return {
        "whitespace_flexible": not compact,
        "whitespace_pattern": None if compact else _WHITE_SPACE,
        "item_separator": ",",
        "key_separator": ":",
        "coerce_one_of": False,
        "lenient": False,
    }


def _schema(value: object) -> object:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"The schema is not valid JSON: {error}.") from None
    return kept_schema(value)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise GrammarError(f"It must be {name} as a non-empty string.")
    return value


def _choices(value: object) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise GrammarError("It must be a list of non-empty strings, at least one.")
    if len(value) > MAX_CHOICES:
        raise GrammarError(f"It has {len(value):,} choices; the limit is {MAX_CHOICES:,}. Send fewer.")
    # As one terminal: as rules, each would be an item of the parser, of which a place may have 2,000.
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in value)


def _free_grammar(text: str) -> Grammar:
    try:
        return replace(_of_lark(grammar_from("grammar", text)), is_free=True)
    except Exception as error:  # the converter raises whatever it meets
        raise GrammarError(f"The grammar can be read neither as Lark nor as GBNF: {error!s:.500}.") from None
