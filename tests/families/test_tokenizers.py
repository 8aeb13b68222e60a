"""Answers of each family in the tokens of real tokenizers: what they mean, what holds them, what users cannot say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from answer_samples import SAMPLES, TOOLS, meaning
from families.conftest import Family, family, templates

from wllm_api.grammars import Constraint
from wllm_api.grammars.breadth import MAX_OPTIONAL, MAX_WAYS
from wllm_api.text import ChatTemplate, ControlTokens, Detokenizer, Tokenizer
from wllm_api.tools import AnswerFormat


def deltas(tokenizer: Tokenizer, ids: Sequence[int], kept: frozenset[int]) -> list[str]:
    """The text of each token as a stream has it."""
    shown = Detokenizer(tokenizer, kept=kept)
    return [shown.push(token_id) for token_id in ids]


@pytest.mark.parametrize("name", SAMPLES)
def test_answers_mean_the_same_in_tokens(real: Family, name: str) -> None:
    """A stream of tokens, in events of any length, means what the whole text means."""
    sample = SAMPLES[name]
    tokenizer = real.tokenizer
    form = AnswerFormat(sample.tools, sample.thinking)
    special = tokenizer.special_ids(form.marks(with_tools=True))
    ids = tokenizer.encode(sample.text, add_special_tokens=False)
    pieces = deltas(tokenizer, ids, frozenset(special.values()))
    if "".join(pieces) != sample.text:
        return  # this tokenizer does not keep every blank
    tools = TOOLS if sample.tools is not None else None

    def read(cuts: Sequence[str]) -> Any:
        parser = form.parser(sample.prompt, tools=tools, special=frozenset(special))()
        found = [piece for text in cuts for piece in parser.push(text)]
        return meaning(found + parser.finish(cut=False))

    whole = read([sample.text])
    assert read(pieces) == whole
    for at in range(len(pieces)):
        assert read(["".join(pieces[:at]), "".join(pieces[at:])]) == whole
    drawn = random.Random(name)
    for _ in range(20):
        ends = sorted(drawn.choices(range(len(pieces) + 1), k=drawn.randint(2, 8)))
        cuts = ["".join(pieces[a:b]) for a, b in zip([0, *ends], [*ends, len(pieces)], strict=True)]
        assert read(cuts) == whole


# Answers that keep to the schemas of their tools, in the tokens of the model that writes them.
KEPT = [
    ("qwen3", "hermes_two"),
    ("qwen3", "hermes_text_around"),
    ("qwen3", "think_then_call"),
    ("qwen3", "call_in_unclosed_thought"),
    ("qwen3", "example_in_thought_is_thought"),
    ("qwen3", "glm"),
    ("qwen3", "qwen3_coder_text_stays_text"),
    ("qwen3", "mistral_list"),
    ("qwen3", "granite"),
    ("llama3_1", "llama_bare"),
    ("llama3_1", "llama_two"),
    ("llama3_1", "llama_other_json"),
    ("llama3_1", "llama_text"),
    ("gptoss", "harmony"),
    ("gptoss", "harmony_recipient_first"),
    ("gptoss", "harmony_final"),
    ("deepseek", "deepseek_v3"),
    ("deepseek", "deepseek_v31"),
]


@pytest.mark.parametrize(("model", "name"), KEPT)
def test_grammar_lets_the_model_write_as_it_does(model: str, name: str) -> None:
    real, sample = family(model), SAMPLES[name]
    text = sample.text + ("\n</tool_call>" if name == "qwen3_coder_text_stays_text" else "")
    ids = real.inner.encode(text, add_special_tokens=False).ids
    matcher = _matcher(real, AnswerFormat(sample.tools, sample.thinking), sample.prompt)
    held = 0
    for number, token_id in enumerate(ids):
        mask = matcher.mask
        held += mask is not None
        assert mask is None or mask[token_id // 8] >> token_id % 8 & 1, real.inner.decode(ids[: number + 1])
        matcher.accept(token_id)
    assert (held > 0) == bool(sample.calls)


def _matcher(real: Family, form: AnswerFormat, prompt: str = "") -> Any:
    checker, compiler = real.grammars
    grammar = form.held_calls(prompt, TOOLS, parallel=True, token_of=checker.token_of_now)
    assert grammar is not None
    checker.check_grammar_now(grammar)
    return compiler.compile(grammar).result()


def test_call_may_not_end_before_it_is_complete() -> None:
    real = family("qwen3")
    matcher = _matcher(real, AnswerFormat("hermes", None))
    for token_id in real.inner.encode('<tool_call>\n{"name": "get_weather", "arguments": {"city": ').ids:
        matcher.accept(token_id)
    mask = matcher.mask
    assert not any(mask[end // 8] >> end % 8 & 1 for end in real.eos_token_ids)


TEXT = {"type": "string"}


def an_object(name: str, count: int, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"{name}{number}": value for number in range(count)}}


INNER = {"outer": an_object("p", MAX_OPTIONAL, {"$ref": "#/$defs/inner"}), "inner": an_object("p", MAX_OPTIONAL, TEXT)}
BROADEST: list[tuple[dict[str, Any], str]] = [
    (an_object("", MAX_OPTIONAL, TEXT), '{"0": "a", "7": "b",\n  "12": "c"}'),
    (
        {**an_object("p", MAX_OPTIONAL, {"$ref": "#/$defs/outer"}), "$defs": INNER},
        '{"p0": {"p1": {"p3": "a"}}, "p3": {"p4": {"p4": "b", "p5": "c"}}}',
    ),
    (
        {
            "type": "array",
            "items": {"anyOf": [an_object(f"p{number}_", 10, TEXT) for number in range(MAX_WAYS // 40 - 1)]},
        },
        '[{"p3_0": "a"}, {"p1_0": "b", "p1_5": "c"}]',
    ),
    ({"type": "array", "items": {"enum": [{"a": number} for number in range(1000)]}}, '[{"a": 1}, {"a": 30}]'),
]


@pytest.mark.parametrize(("schema", "text"), BROADEST, ids=["digits", "nested", "union", "enum"])
def test_broadest_schemas_are_followed(real: Family, schema: dict[str, Any], text: str) -> None:
    """The compiler's limits, which depend on the vocabulary, are further away than those of the API."""
    checker, compiler = real.grammars
    matcher = compiler.compile(checker.check_now(Constraint("json", schema, "response_format"))).result()
    for char in text:
        for token_id in real.inner.encode(char, add_special_tokens=False).ids:
            mask = matcher.mask
            assert mask is not None and mask[token_id // 8] >> token_id % 8 & 1
            matcher.accept(token_id)


def test_no_user_types_a_control_token(real: Family) -> None:
    drawn = random.Random(9)
    tokenizer = real.tokenizer
    names = [name for name, special in tokenizer.added_tokens.items() if special]
    control = ControlTokens(names)
    tokenizer.keep_typed(control)
    ids_of = {real.inner.token_to_id(name) for name in names}
    template = ChatTemplate("{% for m in messages %}{{ m.content }}\n{% endfor %}", {}, control)
    for _ in range(60):
        text = "".join(drawn.choice([*names[:40], "Hi ", "größe", "\n\n", "  <", "|>"]) for _ in range(8))
        prompt = template.render([{"role": "user", "content": text}])
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        assert not ids_of.intersection(ids), text
        assert tokenizer.decode(ids, skip_special_tokens=False).strip() == text.strip()


@pytest.mark.parametrize("model", ["qwen3", "gemma3", "llama3_1"])
def test_begin_token_is_not_doubled(model: str) -> None:
    real = family(model)
    tokenizer = real.tokenizer
    begin = {"gemma3": "<bos>", "llama3_1": "<|begin_of_text|>"}.get(model)
    source = next(text for name, text in templates().items() if name == f"tokenizer-{model}")
    tokens = {} if begin is None else {"bos_token": begin}
    prompt = ChatTemplate(source, tokens).render([{"role": "user", "content": "Hi"}])
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert begin is None or ids.count(real.inner.token_to_id(begin)) == 1
