"""Grammars of calls: whatever one allows is a call that its parser reads and that fits the schema of its tool."""

import json
import random
import re
from typing import Any

import pytest
from answer_samples import meaning
from char_tokenizer import char_tokenizer
from llguidance import LLMatcher, LLTokenizer

from wllm_api.grammars import GrammarChecker
from wllm_api.tools import TOOL_PARSERS, AnswerFormat, NotHeld, Tools
from wllm_sched.grammar import Grammar, Opening

FAMILIES = [name for name in TOOL_PARSERS if name not in ("auto", "none")]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "integer"},
        "hourly": {"type": "boolean"},
        "places": {"type": "array", "items": {"type": "string"}},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": WEATHER,
    "get": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
    "anything": {},
}
CLOSERS = ['"', "}", "]", "\n</parameter>", "</function>", "</arg_value>", "</tool_call>", '<|"|>', "<escape>"]


class Held:
    """A family's grammar of calls, over a tokenizer whose tokens are characters and, if `special`, marks."""

    def __init__(self, family: str, tools: Tools = TOOLS, *, special: bool = True, parallel: bool = True) -> None:
        self.form = AnswerFormat(family, "harmony" if family == "harmony" else None)
        # No model has "<function=" for a token.
        self.marks = [
            mark for mark in self.form.marks(with_tools=True) if (special or not mark.isascii()) and mark[-1] != "="
        ]
        self.inner = char_tokenizer(self.marks)
        self._known = LLTokenizer(self.inner.to_str())
        self.grammar = self.written(tools, parallel=parallel)
        assert self.grammar.opening is not None
        self.opening: Opening = self.grammar.opening

    def token_of(self, text: str) -> int | None:
        return self.inner.token_to_id(text) if text in self.marks else None

    def written(self, tools: Tools, *, parallel: bool = True) -> Grammar:
        grammar = self.form.held_calls("", tools, parallel=parallel, token_of=self.token_of)
        assert grammar is not None
        return GrammarChecker(self.inner.to_str()).check_grammar_now(grammar)

    def matcher(self) -> LLMatcher:
        matcher = LLMatcher(self._known, self.grammar.text, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher

    def allows(self, text: str) -> bool:
        """Whether `text` behind the mark is a complete call."""
        matcher = self.matcher()
        ids = self.inner.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def calls(self, text: str, *, tools: Tools = TOOLS) -> list[tuple[str, Any]]:
        parser = self.form.parser("", tools=tools, special=frozenset(self.marks))()
        pieces = parser.push(text) + parser.finish(cut=False)
        content, _, calls = meaning(pieces)
        assert not content, text
        return [(name, json.loads(arguments)) for name, arguments in calls]

    def walk(self, drawn: random.Random) -> str:
        """A text that the grammar allows, drawn token by token, with a liking for its end."""
        matcher, ids = self.matcher(), []
        while not matcher.is_stopped() and not (matcher.is_accepting() and drawn.random() < 0.3):
            mask = matcher.compute_bitmask()
            allowed = [number for number in range(self.inner.get_vocab_size()) if mask[number // 8] >> number % 8 & 1]
            wanted = self.inner.encode(drawn.choice(CLOSERS), add_special_tokens=False).ids
            if len(ids) > 40 and wanted[0] in allowed:
                ids += wanted[: matcher.try_consume_tokens(wanted)]
                continue
            ids.append(drawn.choice(allowed))
            assert matcher.consume_token(ids[-1])
            assert len(ids) < 3000, self.inner.decode(ids)
        return str(self.inner.decode(ids, skip_special_tokens=False)).replace("<|end_of_text|>", "")


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value matches a schema of the kind that `TOOLS` has."""
    kind = schema.get("type")
    if kind == "object":
        known = schema.get("properties", {})
        return (
            isinstance(value, dict)
            and all(name in value for name in schema.get("required", []))
            and (schema.get("additionalProperties") is not False or not value.keys() - known.keys())
            and all(fits(value[name], part) for name, part in known.items() if name in value)
        )
    if kind == "array":
        return isinstance(value, list) and all(fits(one, schema["items"]) for one in value)
    types = {"string": str, "boolean": bool, "number": int | float, "integer": int}
    if kind is not None and (not isinstance(value, types[kind]) or (kind != "boolean" and isinstance(value, bool))):
        return False
    return "enum" not in schema or value in schema["enum"]


def first_mark(family: str) -> str:
    """What stands before a call of the family."""
    if family == "harmony":
        return "<|channel|>commentary "
    return AnswerFormat(family, None).marks(with_tools=True)[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("special", [True, False])
def test_all_that_is_allowed_fits(family: str, special: bool) -> None:
    held = Held(family, special=special)
    drawn = random.Random(family)
    seen = set()
    for _ in range(12):
        text = held.walk(drawn)
        calls = held.calls(first_mark(family) + text)
        assert calls, text
        for name, arguments in calls:
            assert fits(arguments, {"type": "object", **TOOLS[name]}), text
            seen.add(name)
    assert len(seen) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_one_call_when_they_may_not_be_parallel(family: str) -> None:
    held = Held(family, parallel=False)
    assert not held.opening.repeats and Held(family).opening.repeats
    for seed in range(6):
        assert len(held.calls(first_mark(family) + held.walk(random.Random(seed)))) == 1


CANONICAL = {
    "hermes": '\n{"name": "get", "arguments": {"id": 3}}\n</tool_call>',
    "llama3": '{"name": "get", "parameters": {"id": 3}}',
    "mistral": '[{"name": "get", "arguments": {"id": 3}}]',
    "granite": '[{"name": "get", "arguments": {"id": 3}}]',
    "phi4": '[{"name": "get", "arguments": {"id": 3}}]',
    "deepseek": "",
    "qwen3_coder": "\n<function=get>\n<parameter=id>\n3\n</parameter>\n</function>\n</tool_call>",
    "glm": "get\n<arg_key>id</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "gemma4": "call:get{id:3}<tool_call|>",
    "functiongemma": "call:get{id:3}<end_function_call>",
    "harmony": 'to=functions.get <|constrain|>json<|message|>{"id": 3}',
}


@pytest.mark.parametrize("family", [name for name in FAMILIES if CANONICAL[name]])
def test_the_family_writes_as_it_always_does(family: str) -> None:
    held, text = Held(family), CANONICAL[family]
    assert held.allows(text)
    assert held.calls(first_mark(family) + text) == [("get", {"id": 3})]
    for wrong in (
        text.replace("get", "got"),
        text.replace("id", "ib"),
        text.replace("3", '"3"'),
        text.replace("3", ""),
    ):
        assert not held.allows(wrong), wrong


@pytest.mark.parametrize(
    "text",
    [
        'get_weather[ARGS]{"city": "Rome", "unit": "c"}',
        'get_weather{"city": "Rome", "unit": "c"}',
        'get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Rome", "unit": "c"}',
        '[{"name": "get", "arguments": {"id": 3}}, {"name": "now", "arguments": {}}]',
    ],
)
def test_all_notations_of_mistral(text: str) -> None:
    assert Held("mistral").allows(text)


@pytest.mark.parametrize(
    "text",
    [
        'function<｜tool▁sep｜>get\n```json\n{"id": 3}\n```<｜tool▁call▁end｜>',
        'get<｜tool▁sep｜>{"id": 3}<｜tool▁call▁end｜>',
    ],
)
def test_both_notations_of_deepseek(text: str) -> None:
    form = AnswerFormat("deepseek", None)
    marks = form.marks(with_tools=True)
    inner = char_tokenizer(marks)
    grammar = form.held_calls("", TOOLS, parallel=True, token_of=inner.token_to_id)
    assert grammar is not None
    for wrong in ("", "3"):
        matcher = LLMatcher(LLTokenizer(inner.to_str()), grammar.text, log_level=0)
        ids = inner.encode(text.replace(wrong, '"3"') if wrong else text, add_special_tokens=False).ids
        assert (matcher.try_consume_tokens(ids) == len(ids)) == (not wrong)


@pytest.mark.parametrize("family", FAMILIES)
def test_begins_at_the_mark(family: str) -> None:
    opening = Held(family).opening
    found = re.search(opening.begins, "Text. " + first_mark(family) + CANONICAL[family])
    if family == "deepseek":
        assert re.search(opening.begins, "<｜tool▁call▁begin｜>") is not None
        return
    assert found is not None and found.end("mark") >= len("Text. ")
    assert re.search(opening.in_thought, first_mark(family) + CANONICAL[family]) is not None
    if family != "harmony":
        assert re.search(opening.in_thought, first_mark(family) + " is how a call begins") is None


def test_llama_begins_without_a_mark_only_when_it_is_certain() -> None:
    at_start = Held("llama3").opening.at_start
    assert at_start is not None
    for text, begins in (
        ('{"name": "get", "parameters"', True),
        ('  {"name": "now", "arguments": {}}', True),
        ('{"name": "get"}', False),
        ('{"name": "Bob", "parameters": {}}', False),
        ('{"name": "get", "age": 3}', False),
    ):
        assert (re.match(at_start, text) is not None) == begins, text


@pytest.mark.parametrize(
    ("family", "schema"),
    [
        ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": "x+"}}}),
        ("qwen3_coder", {"anyOf": [{"required": ["a"]}]}),
        ("glm", {"required": ["a"]}),
        ("glm", {"properties": {"a": {"type": "string", "maxLength": 3}}}),
        ("gemma4", {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}),
        ("gemma4", {"properties": {"a": {"type": "array", "minItems": 2}}}),
        ("functiongemma", {"required": ["a"]}),
    ],
)
def test_what_a_notation_cannot_keep_is_told(family: str, schema: dict[str, Any]) -> None:
    with pytest.raises(NotHeld):
        Held(family, {"f": {"type": "object", **schema}})


ODD_TEXTS = [
    "a b", " a", "a:b", ",a", "}a", "a>b", "a\nb", '"a"', "'a'", "a\\", "|", "name", "null", "<arg_key>", "</arg_key>",
    "</parameter>", "</arg_value>", "</tool_call>", '<|"|>', "<escape>", "<tool_call|>", "<|end|>",
]  # fmt: skip
HOLDS_ALL = {"hermes", "llama3", "mistral", "granite", "phi4", "harmony", "deepseek"}


def can_hold(family: str, properties: dict[str, Any]) -> bool:
    """Whether a family's notation can keep an object of these properties."""
    tools = {"f": {"type": "object", "properties": properties}}
    try:
        AnswerFormat(family, None).held_calls("", tools, parallel=True, token_of=lambda _: None)
    except NotHeld:
        return False
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_odd_names_and_choices_come_back_or_are_not_held(family: str) -> None:
    """Marks of the family and special tokens among them: in arguments they are text."""
    names = {text: {"type": "integer"} for text in ODD_TEXTS}
    choices = {f"c{number}": {"type": "string", "enum": [text]} for number, text in enumerate(ODD_TEXTS)}
    kept = {name: schema for name, schema in (names | choices).items() if can_hold(family, {name: schema})}
    assert (len(kept) == 2 * len(ODD_TEXTS)) == (family in HOLDS_ALL) and len(kept) > len(ODD_TEXTS)
    tools = {"f": {"type": "object", "properties": kept, "required": list(kept), "additionalProperties": False}}
    held = Held(family, tools)
    for seed in range(2):
        (call, *_) = held.calls(first_mark(family) + held.walk(random.Random(seed)), tools=tools)
        assert call[0] == "f" and fits(call[1], tools["f"])


def test_shared_definitions_are_found() -> None:
    schema = {
        "type": "object",
        "$defs": {"n": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/$defs/n"}},
        "required": ["a"],
    }
    for family, text in (
        ("hermes", '{"name":"f","arguments":{"a":1}}</tool_call>'),
        ("qwen3_coder", "<function=f><parameter=a>\n1\n</parameter></function></tool_call>"),
    ):
        held = Held(family, {"f": schema})
        assert held.allows(text) and not held.allows(text.replace("1", '"1"'))


@pytest.mark.parametrize("name", [None, "none"])
def test_nothing_is_held_where_calls_are_not_known(name: str | None) -> None:
    assert AnswerFormat(None, None).held_calls("", TOOLS, parallel=True, token_of=lambda _: None) is None


@pytest.mark.parametrize("family", [name for name in FAMILIES if CANONICAL[name] and name != "harmony"])
@pytest.mark.parametrize("special", [True, False])
def test_answer_is_a_form_or_calls(family: str, special: bool) -> None:
    held = Held(family, special=special)
    other = Grammar(LLMatcher.grammar_from_json_schema('{"type": "object", "required": ["x"]}'), bounds_numbers=True)
    grammar = held.form.held_calls("", TOOLS, parallel=True, token_of=held.token_of, other=other)
    assert grammar is not None and grammar.opening is None
    held.grammar = grammar
    call = first_mark(family) + CANONICAL[family]
    for text, allowed in (('{"x": 1}', True), (call, True), (call + call, True), ("Hi", False), ('{"y": 1}', False)):
        assert held.allows(text) == allowed, text


def test_harmony_has_no_form_beside_calls() -> None:
    other = Grammar(LLMatcher.grammar_from_regex("a"))
    with pytest.raises(NotHeld):
        AnswerFormat("harmony", "harmony").held_calls("", TOOLS, parallel=True, token_of=lambda text: None, other=other)
