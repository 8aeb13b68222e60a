"""Random schemas: each is refused, or whatever its grammar allows fits it, as jsonschema sees it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from char_tokenizer import char_tokenizer
from llguidance import LLMatcher, LLTokenizer

from wllm_api.errors import GrammarError
from wllm_api.grammars import Constraint, GrammarChecker
from wllm_sched.grammar import Grammar

INNER = char_tokenizer()
TOKENIZER = LLTokenizer(INNER.to_str())
CHECKER = GrammarChecker(INNER.to_str())
PATTERNS = ["^a+$", "[0-9]{2}", "^(x|yy)$", "^[A-Z][a-z]*$", "b", "^.{0,3}$"]
NUMBERS = [-100, -1.5, -1, 0, 0.001, 0.5, 1, 1.5, 2, 3, 9.99, 10, 100, 100.01]
VALUES: list[Any] = [1, "a", None, True, 2.5, "", [1, 2], {"a": 1}]


class RandomSchemas:
    """Schemas of all keywords that can be enforced."""

    def __init__(self, drawn: random.Random) -> None:
        self._drawn = drawn

    def schema(self) -> dict[str, Any]:
        """A schema with two definitions that its parts may refer to."""
        return {**self._part(3), "$defs": {"a": self._part(1), "b": self._part(1)}}

    def _maybe(self, share: float, keyword: str, value: Any) -> dict[str, Any]:
        return {keyword: value} if self._drawn.random() < share else {}

    def _part(self, depth: int) -> dict[str, Any]:
        drawn = self._drawn
        makers: list[Callable[[], dict[str, Any]]] = [self._text, self._number, self._fixed]
        if depth:
            makers += [
                lambda: self._object(depth - 1),
                lambda: self._array(depth - 1),
                lambda: self._several(depth - 1),
            ]
            makers += [lambda: {"$ref": drawn.choice(["#/$defs/a", "#/$defs/b"])}]
        part = drawn.choice(makers)()
        return part | self._maybe(0.05, "type", ["string", "null", "integer"]) if "type" in part else part

    def _text(self) -> dict[str, Any]:
        drawn = self._drawn
        return {
            "type": "string",
            **self._maybe(0.3, "minLength", drawn.randint(0, 3)),
            **self._maybe(0.3, "maxLength", drawn.randint(0, 5)),
            **self._maybe(0.3, "pattern", drawn.choice(PATTERNS)),
        }

    def _number(self) -> dict[str, Any]:
        drawn = self._drawn
        low, high = sorted(drawn.sample(NUMBERS, 2))
        return {
            "type": drawn.choice(["integer", "number"]),
            **self._maybe(0.6, drawn.choice(["minimum", "exclusiveMinimum"]), low),
            **self._maybe(0.6, drawn.choice(["maximum", "exclusiveMaximum"]), high),
            **self._maybe(0.2, "multipleOf", drawn.choice([1, 2, 3, 5])),
        }

    def _fixed(self) -> dict[str, Any]:
        drawn = self._drawn
        if drawn.random() < 0.3:
            return {"type": drawn.choice(["boolean", "null"])}
        return {"enum": drawn.sample(VALUES, 3)} if drawn.random() < 0.5 else {"const": drawn.choice(VALUES)}

    def _object(self, depth: int) -> dict[str, Any]:
        drawn = self._drawn
        names = drawn.sample(["a", "b", "c", "ab"], drawn.randint(0, 4))
        return {
            "type": "object",
            **self._maybe(0.9, "properties", {name: self._part(depth) for name in names}),
            **self._maybe(0.6, "required", [name for name in names if drawn.random() < 0.5]),
            **self._maybe(0.3, "additionalProperties", drawn.choice([True, False, self._part(depth)])),
            **self._maybe(0.15, "patternProperties", {drawn.choice(["^a", "^q", "b$"]): self._part(depth)}),
            **self._maybe(0.1, drawn.choice(["minProperties", "maxProperties"]), drawn.randint(0, 3)),
        }

    def _array(self, depth: int) -> dict[str, Any]:
        drawn = self._drawn
        return {
            "type": "array",
            **self._maybe(0.8, "items", drawn.choice([False, self._part(depth), self._part(depth)])),
            **self._maybe(0.3, "prefixItems", [self._part(depth) for _ in range(drawn.randint(1, 2))]),
            **self._maybe(0.3, "minItems", drawn.randint(0, 3)),
            **self._maybe(0.3, "maxItems", drawn.randint(0, 4)),
        }

    def _several(self, depth: int) -> dict[str, Any]:
        drawn = self._drawn
        keyword = drawn.choice(["anyOf", "allOf", "oneOf"])
        parts = [self._part(depth) for _ in range(drawn.randint(1, 3))]
        return {**(self._part(depth) if drawn.random() < 0.3 else {}), keyword: parts}


def walk(grammar: Grammar, drawn: random.Random) -> str | None:
    """A text that the grammar allows, drawn token by token; None for one that became too long."""
    matcher = LLMatcher(TOKENIZER, grammar.text, log_level=0)
    ids: list[int] = []
    closers = INNER.encode('"}]0', add_special_tokens=False).ids
    while not matcher.is_stopped() and not (matcher.is_accepting() and drawn.random() < 0.4):
        mask = matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        allowed = [number for number in range(INNER.get_vocab_size()) if mask[number // 8] >> number % 8 & 1]
        wanted = [number for number in closers if number in allowed]
        ids.append(drawn.choice(wanted if wanted and len(ids) > 40 and drawn.random() < 0.8 else allowed))
        assert matcher.consume_token(ids[-1])
        if len(ids) > 300:
            return None
    return str(INNER.decode(ids, skip_special_tokens=True))


def has_a_name_twice(text: str) -> bool:
    objects: list[list[str]] = []
    json.loads(text, object_pairs_hook=lambda members: objects.append([name for name, _ in members]))
    return any(len(set(names)) < len(names) for names in objects)


def assert_all_that_is_allowed_fits(seed: int) -> bool:
    """Whether the schema of a seed was taken."""
    drawn = random.Random(seed)
    schema = RandomSchemas(drawn).schema()
    try:
        grammar = CHECKER.check_now(Constraint("json", schema, "response_format"))
    except GrammarError:
        return False
    for _ in range(3):
        text = walk(grammar, drawn)
        # No grammar keeps a free name from coming twice, and one that does counts for `minProperties` each time.
        if text is not None and not has_a_name_twice(text):
            assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), (schema, text)
    return True


def test_all_that_is_allowed_fits() -> None:
    assert sum(map(assert_all_that_is_allowed_fits, range(150))) > 70


@pytest.mark.full
def test_all_that_is_allowed_fits_many_times() -> None:
    assert sum(map(assert_all_that_is_allowed_fits, range(150, 10_000))) > 5000


@pytest.mark.parametrize(
    ("bounds", "excluded", "included"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0", "0.5"),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1e-7}, "0", "0.00000001"),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 1.5, "minimum": 0.5}, "1", "1.25"),
        ({"exclusiveMinimum": 100, "maximum": 100.01}, "100", "100.01"),
        ({"exclusiveMinimum": -3, "maximum": -2.5, "minimum": -2.75}, "-3", "-2.6"),
        ({"exclusiveMinimum": True, "minimum": 0, "maximum": 0.5}, "0", "0.25"),
        ({"exclusiveMinimum": 0, "allOf": [{"maximum": 0.5}]}, "0", "0.25"),
        ({"exclusiveMinimum": 0, "anyOf": [{"maximum": 0.5}, {"minimum": 7}]}, "0", "7.25"),
        ({"allOf": [{"exclusiveMinimum": 2}, {"exclusiveMaximum": 2.5}]}, "2", "2.25"),
        ({"exclusiveMaximum": -1, "minimum": -1.5}, "-1", "-1.5"),
        ({"exclusiveMaximum": 0, "exclusiveMinimum": -0.5}, "0", "-0.25"),
        ({"exclusiveMaximum": -1, "exclusiveMinimum": -1.5, "maximum": 7}, "-1", "-1.25"),
        ({"exclusiveMaximum": True, "maximum": -2, "minimum": -2.5}, "-2", "-2.25"),
    ],
)
def test_an_excluded_whole_number_is_not_let_in(bounds: dict[str, Any], excluded: str, included: str) -> None:
    schema = {"type": "array", "items": {"type": "number", **bounds}}
    grammar = CHECKER.check_now(Constraint("json", schema, "response_format"))
    for number, allowed in ((excluded, False), (f"{excluded}.0", False), (included, True)):
        matcher = LLMatcher(TOKENIZER, grammar.text, log_level=0)
        ids = INNER.encode(f"[{number}]", add_special_tokens=False).ids
        assert (matcher.try_consume_tokens(ids) == len(ids)) == allowed, number
