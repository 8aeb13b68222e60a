"""Answers as each family writes them: what they mean, and that it does not matter how they are cut."""

import json
import random
import time
from collections.abc import Sequence

import pytest
from answer_samples import SAMPLES, TOOLS, Meaning, Sample, in_pieces, meaning

from wllm_api.tools import TOOL_PARSERS, AnswerFormat, AnswerParser

NAMED = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())


def new_parser(sample: Sample) -> AnswerParser:
    form = AnswerFormat(sample.tools, sample.thinking)
    marks = frozenset(form.marks(with_tools=True))
    special = frozenset(mark for mark in marks if mark.startswith(("[", "<|")))
    tools = TOOLS if sample.tools is not None else None
    return form.parser(sample.prompt, tools=tools, special=special)()


def read(sample: Sample, cuts: Sequence[str], *, cut: bool = False) -> Meaning:
    parser = new_parser(sample)
    pieces = [piece for text in cuts for piece in parser.push(text)]
    return meaning(pieces + parser.finish(cut=cut))


@NAMED
def test_meaning(sample: Sample) -> None:
    content, reasoning, calls = read(sample, [sample.text])
    assert (content, reasoning) == (sample.content, sample.reasoning)
    assert tuple((name, json.loads(text)) for name, text in calls) == sample.calls


def test_every_family_has_a_sample() -> None:
    assert {sample.tools for sample in SAMPLES.values()} == {*TOOL_PARSERS, None} - {"auto", "none"}


@NAMED
def test_streamed_is_whole_for_every_cut(sample: Sample) -> None:
    whole = read(sample, [sample.text])
    assert read(sample, list(sample.text)) == whole
    for at in range(len(sample.text)):
        assert read(sample, [sample.text[:at], sample.text[at:]]) == whole
    drawn = random.Random(0)
    for _ in range(100):
        assert read(sample, in_pieces(sample.text, drawn)) == whole


@NAMED
@pytest.mark.parametrize("cut", [False, True])
def test_streamed_is_whole_for_every_end(sample: Sample, cut: bool) -> None:
    for end in range(len(sample.text)):
        text = sample.text[:end]
        assert read(sample, list(text), cut=cut) == read(sample, [text], cut=cut)


@NAMED
def test_no_markup_when_a_limit_ends_a_call(sample: Sample) -> None:
    """R18: what is given out is a beginning of the whole answer, call by call."""
    content, reasoning, calls = read(sample, [sample.text])
    if not calls or sample.tools in (None, "llama3"):
        return
    marks = AnswerFormat(sample.tools, sample.thinking).marks(with_tools=True)
    for end in range(len(sample.text)):
        if any(mark.startswith(sample.text[at:end]) for mark in marks for at in range(end)):
            continue  # "<" may well be the last word of an answer
        cut_content, cut_reasoning, cut_calls = read(sample, [sample.text[:end]], cut=True)
        assert "<tool_call>" not in cut_content or "<tool_call>" in content
        assert reasoning.startswith(cut_reasoning)
        assert len(cut_calls) <= len(calls)
        for (cut_name, cut_text), (name, text) in zip(cut_calls, calls, strict=False):
            assert cut_name == name
            assert text.startswith(cut_text)


def test_arguments_come_while_they_are_written() -> None:
    parser = new_parser(SAMPLES["hermes_two"])
    kinds = [[piece.kind for piece in parser.push(char)] for char in '<tool_call>{"name": "now", "arguments": {"a": 1']
    assert kinds[-7:] == [["call", "arguments"], *[["arguments"]] * 6]


@pytest.mark.parametrize("text", ["{a:" * 5000, "{a:" + "[" * 5000, "{a:" + "{" * 5000])
def test_deep_values_end_the_arguments(text: str) -> None:
    _, _, calls = read(Sample("gemma4", ""), [f"<|tool_call>call:now{text}"])
    assert [name for name, _ in calls] == ["now"]
    assert len(calls[0][1]) < 300


def test_many_unfinished_calls_take_no_time() -> None:
    text = '<tool_call>{"x":"' + '<tool_call>{\\"x' * 3000
    start = time.perf_counter()
    assert read(SAMPLES["hermes_two"], [text]) == (text, "", [])
    assert time.perf_counter() - start < 10  # reading each to the end takes several times that


def test_random_texts_from_marks() -> None:
    drawn = random.Random(1)
    bits = [
        '{"name": "now", ',
        '"arguments": ',
        "{}",
        "}",
        '"',
        "{",
        "<",
        " ",
        "\n",
        "a",
        ";",
        "function",
        "to=functions.now ",
    ]
    for name in TOOL_PARSERS[2:]:
        form = AnswerFormat(name, "harmony" if name == "harmony" else "think")
        marks = form.marks(with_tools=True)
        sample = Sample(name, "", thinking=form.reasoning)
        for _ in range(300):
            text = "".join(drawn.choice([*marks, *marks, *bits]) for _ in range(drawn.randint(1, 14)))
            for cut in (False, True):
                assert read(sample, list(text), cut=cut) == read(sample, [text], cut=cut), (name, text)
