"""Calls with random arguments in the notation of each family come back as they are, however the text is cut."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from answer_samples import in_pieces, meaning

from wllm_api.answers.message import MessageText
from wllm_api.tools import TOOL_PARSERS, AnswerFormat, AnswerParser, Piece

Arguments = dict[str, Any]
WORDS = "größe|\"|\\|\n|\t|龜🫠|</|<|{|}|]|:|, |a b|'|\\u00e9|1|null".split("|")
TOOL = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "sure": {"type": "boolean"},
        "list": {"type": "array"},
        "map": {"type": "object"},
    },
}
TOOLS = {"do_it": TOOL, "other": TOOL}


def some_text(drawn: random.Random) -> str:
    return "".join(drawn.choice(WORDS) for _ in range(drawn.randint(0, 6)))


def value(drawn: random.Random, depth: int) -> Any:
    kind = drawn.randrange(7 if depth < 3 else 5)
    if kind < 5:
        return [some_text(drawn), drawn.randint(-5, 10**9), drawn.random(), drawn.random() < 0.5, None][kind]
    if kind == 5:
        return [value(drawn, depth + 1) for _ in range(drawn.randint(0, 3))]
    return {f"k{number}": value(drawn, depth + 1) for number in range(drawn.randint(0, 3))}


def arguments(drawn: random.Random) -> Arguments:
    all_of_them: Arguments = {
        "text": some_text(drawn),
        "count": drawn.randint(-9, 9),
        "share": drawn.random(),
        "sure": drawn.random() < 0.5,
        "list": [value(drawn, 1) for _ in range(drawn.randint(0, 3))],
        "map": {"a": value(drawn, 1)},
    }
    return {name: one for name, one in all_of_them.items() if drawn.random() < 0.6}


def written(value: Any, drawn: random.Random) -> str:
    """JSON in one of the ways that models write it."""
    separators = drawn.choice([(", ", ": "), (",", ":"), (" ,\n ", " : ")])
    return json.dumps(value, ensure_ascii=drawn.random() < 0.5, separators=separators)


def as_object(name: str, given: Arguments, drawn: random.Random, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {written(given, drawn)}}}'


def as_text(one: Any, drawn: random.Random) -> str:
    return one if isinstance(one, str) else written(one, drawn)


def gemma(one: Any, quote: str) -> str:
    match one:
        case str():
            return quote + one + quote
        case dict():
            return "{" + ",".join(f"{name}:{gemma(item, quote)}" for name, item in one.items()) + "}"
        case list():
            return "[" + ",".join(gemma(item, quote) for item in one) + "]"
    return json.dumps(one)


def xml(name: str, given: Arguments, drawn: random.Random) -> str:
    body = "".join(f"<parameter={key}>\n{as_text(one, drawn)}\n</parameter>\n" for key, one in given.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def glm(name: str, given: Arguments, drawn: random.Random) -> str:
    body = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{as_text(one, drawn)}</arg_value>\n" for key, one in given.items()
    )
    return f"<tool_call>{name}\n{body}</tool_call>"


def deepseek(name: str, given: Arguments, drawn: random.Random) -> str:
    call = (
        f"function<｜tool▁sep｜>{name}\n```json\n{written(given, drawn)}\n```"
        if drawn.random() < 0.5
        else f"{name}<｜tool▁sep｜>{written(given, drawn)}"
    )
    return f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>"


def mistral(name: str, given: Arguments, drawn: random.Random) -> str:
    if drawn.random() < 0.5:
        return f"[TOOL_CALLS] [{as_object(name, given, drawn)}]"
    return f"[TOOL_CALLS]{name}[ARGS]{written(given, drawn)}"


def harmony(name: str, given: Arguments, drawn: random.Random) -> str:
    return (
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{written(given, drawn)}<|call|>"
    )


WRITERS: dict[str, Callable[[str, Arguments, random.Random], str]] = {
    "deepseek": deepseek,
    "functiongemma": lambda name, given, drawn: (
        f"<start_function_call>call:{name}{gemma(given, '<escape>')}<end_function_call>"
    ),
    "gemma4": lambda name, given, drawn: "<|tool_call>call:" + name + gemma(given, '<|"|>') + "<tool_call|>",
    "glm": glm,
    "granite": lambda name, given, drawn: f"<|tool_call|>[{as_object(name, given, drawn)}]",
    "harmony": harmony,
    "hermes": lambda name, given, drawn: f"<tool_call>\n{as_object(name, given, drawn)}\n</tool_call>",
    "llama3": lambda name, given, drawn: f"<|python_tag|>{as_object(name, given, drawn, 'parameters')}",
    "mistral": mistral,
    "phi4": lambda name, given, drawn: f"<|tool_call|>[{as_object(name, given, drawn)}]<|/tool_call|>",
    "qwen3_coder": xml,
}


def test_every_family_is_written() -> None:
    assert WRITERS.keys() == set(TOOL_PARSERS) - {"auto", "none"}


@pytest.mark.parametrize("family", WRITERS)
def test_random_calls_come_back(family: str) -> None:
    drawn = random.Random(family)
    form = AnswerFormat(family, "harmony" if family == "harmony" else "think")
    for _ in range(60):
        calls = [(drawn.choice(list(TOOLS)), arguments(drawn)) for _ in range(drawn.randint(1, 3))]
        thought, before, after = (drawn.choice(["", f"{word} {some_word(drawn)}."]) for word in ("Hm", "Now", "Done"))
        text = "".join(WRITERS[family](name, given, drawn) for name, given in calls)
        if family == "harmony":
            analysis = f"<|channel|>analysis<|message|>{thought}<|end|>" if thought else ""
            shown = "".join(f"<|start|>assistant<|channel|>final<|message|>{one}<|end|>" for one in [before] if one)
            text, after = analysis + shown + text, ""
        else:
            text = (f"<think>{thought}</think>" if thought else "") + before + text + after
        whole = read(form, [text])
        assert whole == (before + after, thought, [(name, given) for name, given in calls]), text
        assert read(form, in_pieces(text, drawn)) == whole
        assert read(form, list(text)) == whole


@pytest.mark.parametrize("family", WRITERS)
def test_call_that_a_limit_ends_is_a_beginning_of_it(family: str) -> None:
    drawn = random.Random(family)
    form = AnswerFormat(family, None)
    for _ in range(2):
        text = "".join(WRITERS[family](name, arguments(drawn), drawn) for name in TOOLS)
        *_, calls = meaning(pieces_of(form, [text]))
        for end in range(len(text)):
            *_, cut_calls = meaning(pieces_of(form, [text[:end]], cut=True))
            assert len(cut_calls) <= len(calls)
            for (cut_name, cut_text), (name, whole) in zip(cut_calls, calls, strict=False):
                assert cut_name == name and whole.startswith(cut_text), text[:end]


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("max_calls", [1, None])
def test_first_call_alone_where_no_more_may_be(family: str, max_calls: int | None) -> None:
    """What a model writes beyond it, should its calls not be held, is not shown."""
    drawn = random.Random(family)
    form = AnswerFormat(family, None)
    text = "".join(WRITERS[family](name, arguments(drawn), drawn) for name in TOOLS)
    for cuts in ([text], list(text)):
        message = MessageText(new_parser(form), show_reasoning=True, max_calls=max_calls, short_ids=False, named=False)
        pieces = [piece for part in cuts for piece in message.pieces(part)] + message.pieces("", "stop")
        content, _, calls = meaning(pieces)
        assert (content, message.finish_reason) == ("", "tool_calls")
        assert [name for name, _ in calls] == list(TOOLS)[:max_calls]
        assert all(isinstance(json.loads(given), dict) for _, given in calls)


def some_word(drawn: random.Random) -> str:
    return drawn.choice(["größe", "龜", "a < b", '"quoted"'])


def new_parser(form: AnswerFormat) -> AnswerParser:
    special = frozenset(mark for mark in form.marks(with_tools=True) if mark.startswith(("[", "<|", "<｜")))
    return form.parser("", tools=TOOLS, special=special)()


def pieces_of(form: AnswerFormat, cuts: list[str], *, cut: bool = False) -> list[Piece]:
    parser = new_parser(form)
    return [piece for text in cuts for piece in parser.push(text)] + parser.finish(cut=cut)


def read(form: AnswerFormat, cuts: list[str]) -> tuple[str, str, list[tuple[str, Any]]]:
    content, reasoning, calls = meaning(pieces_of(form, cuts))
    return content, reasoning, [(name, json.loads(given)) for name, given in calls]
