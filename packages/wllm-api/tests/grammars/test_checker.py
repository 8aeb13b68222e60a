"""What the checker says of a schema that cannot be compiled, and how long it takes to say so."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from char_tokenizer import char_tokenizer
from llguidance import LLMatcher, LLTokenizer

from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.errors import GrammarError
from wllm_api.grammars import Constraint, GrammarChecker
from wllm_api.grammars.constraint import Kind
from wllm_sched import Grammar


def refusal(value: object, kind: Kind = "json") -> str:
    checker = GrammarChecker(build_tokenizer().to_str())
    with pytest.raises(GrammarError) as caught:
        checker.check_now(Constraint(kind, value, "response_format"))
    return str(caught.value)


def test_the_place_of_an_error_is_told() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {"items": {"format": "nix"}}}}
    assert refusal(schema) == "Unknown format: nix (at /properties/b/items of the schema)."


QUERIES = """
start: "SELECT " columns " FROM " NAME (" WHERE " condition)? (" ORDER BY " NAME (" DESC")?)? ";"
columns: "*" | column (", " column)*
column: NAME | ("COUNT" | "SUM" | "MIN" | "MAX") "(" NAME ")"
condition: condition " AND " condition | condition " OR " condition | "(" condition ")" | NAME OPERATOR value
value: NUMBER | TEXT | NAME
OPERATOR: " = " | " < " | " > " | " LIKE "
NUMBER: /-?[0-9]+(\\.[0-9]+)?/
TEXT: /'[^']*'/
NAME: /[a-z_][a-z0-9_]*/
"""


def test_the_limits_leave_room_for_a_language() -> None:
    checker = GrammarChecker(build_tokenizer().to_str())
    assert checker.check_now(Constraint("grammar", QUERIES, "structured_outputs")).is_free


@pytest.mark.parametrize("number", [160, 600])
def test_a_grammar_of_rules_that_begin_with_each_other_is_refused(number: int) -> None:
    rules = [f"b{n}: a | b{(7 * n + 1) % number} a | LETTER" for n in range(number)]
    calls = " | ".join(f"a b{n}" for n in range(number))
    start = time.thread_time()
    text = refusal("\n".join(["start: a", f"a: {calls} | LETTER", *rules, "LETTER: /[a-z]/"]), "grammar")
    assert "Too many items (limit 1000" in text or "too big (limit for this grammar: 1000)" in text
    assert time.thread_time() - start < 1  # without the limits 10 s, and minutes


def test_what_is_good_of_ours_is_not_good_of_a_client() -> None:
    checker = GrammarChecker(build_tokenizer().to_str())
    names = [f"r{number}" for number in range(1_200)]
    rules = [f'{name}: "{name}"' for name in names]
    wide = "\n".join([f"start: {' | '.join(names)}", *rules])
    ours = Grammar(wide)
    assert checker.check_grammar_now(ours) is ours
    with pytest.raises(GrammarError, match="limit"):
        checker.check_grammar_now(replace(ours, is_free=True))


LONG = "x" * 50_000


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("json", {"anyOf": [{}] * 500_000}, "has more than 20,000 schemas inside"),
        ("json", {"properties": {LONG: {"anyOf": [{"not": {}}] * 10_000}}}, "The keyword 'not' at /properties/xxx"),
        ("json", {"properties": {"a": {LONG: 1}}}, "at /properties/a of the schema is not supported"),
        ("json", {"type": "object", "required": [LONG], "additionalProperties": False}, "Unsatisfiable schema"),
        ("json", {"type": LONG}, "Invalid type: xxx"),
        ("regex", "(" * 100_000, "invalid regex"),
        ("grammar", f"start: {LONG}", 'unknown name: "xxx'),
        ("grammar", LONG, "neither as Lark nor as GBNF"),
    ],
)
def test_a_refusal_is_short_and_quick(kind: Kind, value: object, words: str) -> None:
    """Places and messages of the compiler may repeat what was sent."""
    start = time.perf_counter()
    text = refusal(value, kind)
    assert words in text and len(text) < 1000
    assert time.perf_counter() - start < 2


def test_looking_for_the_place_ends_before_the_time_for_the_whole_check() -> None:
    """Each part is compiled with all definitions, which takes its time when there are many."""
    part = {"type": "object", "properties": {f"p{number}": {"pattern": "^[a-z]{3,40}$"} for number in range(12)}}
    names = [f"d{number}" for number in range(150)]
    schema = {
        "type": "object",
        "properties": {"last": {"format": "nix"}, **{name: {"$ref": f"#/$defs/{name}"} for name in names}},
        "required": names,
        "$defs": {name: {**part, "required": list(part["properties"])} for name in names},
    }
    start = time.perf_counter()
    assert refusal(schema).startswith("Unknown format: nix")
    assert time.perf_counter() - start < 3.5


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("json", {"const": "<|end|>"}, '"<|end|>"'),
        ("json", {"const": '<|"|>'}, r'"<|\"|>"'),
        ("json", {"type": "object", "properties": {"<|end|>": {"const": 1}}, "required": ["<|end|>"]}, '{"<|end|>":1}'),
        ("choice", ["<|end|>", '<|"|>'], "<|end|>"),
        ("choice", ['<|"|>'], '<|"|>'),
        ("regex", r"<\|end\|>!", "<|end|>!"),
        ("grammar", 'start: "<|end|>" "."', "<|end|>."),
    ],
)
def test_the_name_of_a_special_token_is_text(kind: Kind, value: object, text: str) -> None:
    """The compiler would offer the token where it is the only way on, and then refuse it."""
    special = ["<|end|>", '<|"|>']
    inner = char_tokenizer(special)
    grammar = GrammarChecker(inner.to_str()).check_now(Constraint(kind, value, "response_format"))
    matcher = LLMatcher(LLTokenizer(inner.to_str()), grammar.text, log_level=0)
    for char in text:
        mask = matcher.compute_bitmask()
        allowed = {number for number in range(inner.get_vocab_size()) if mask[number // 8] >> number % 8 & 1}
        assert not allowed & {inner.token_to_id(name) for name in special}
        assert matcher.consume_token(inner.token_to_id(char))
    assert matcher.is_accepting()
