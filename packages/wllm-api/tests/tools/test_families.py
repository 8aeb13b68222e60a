"""Answers as each family writes them: what they mean, and that it does not matter how they are cut."""

import json
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from wllm_api.tools import TOOL_PARSERS, AnswerFormat, AnswerParser, Piece

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "hourly": {"type": "boolean"}},
}
TOOLS: dict[str, dict[str, Any]] = {"get_weather": WEATHER, "file_write": {}, "now": {}}


class Sample(NamedTuple):
    """`calls` are names and parsed arguments; `prompt` is the end of the prompt."""

    tools: str | None
    text: str
    content: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    reasoning: str = ""
    thinking: str | None = None
    prompt: str = ""


PARIS = ("get_weather", {"city": "Paris", "days": 3})
ROME = ("get_weather", {"city": "Rome"})
PARIS_JSON = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
ROME_JSON = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
HERMES_PARIS = f"<tool_call>\n{PARIS_JSON}\n</tool_call>"
R17 = r"""<tool_call>
{"name": "file_write", "arguments": {"filePath": "hello.py", "content": "print(\"hello\")"}}
</tool_call>
<tool_call>
{"name": "file_write", "arguments": {"filePath": "world.py", "content": "print(\"world\")"}}
</tool_call>"""
R17_CALLS = tuple(
    ("file_write", {"filePath": f"{word}.py", "content": f'print("{word}")'}) for word in ("hello", "world")
)

SAMPLES = {
    "plain": Sample(None, "  Just <tool_call> text\n ", "  Just <tool_call> text\n "),
    "hermes_two": Sample("hermes", R17, calls=R17_CALLS),
    "hermes_text_around": Sample("hermes", f"I look.\n{HERMES_PARIS}\nDone. ", "I look.Done. ", (PARIS,)),
    "hermes_mark_in_string": Sample(
        "hermes",
        '<tool_call>{"name": "now", "arguments": {"a": "</tool_call> \\" }"}}</tool_call>',
        calls=(("now", {"a": '</tool_call> " }'}),),
    ),
    "hermes_arguments_first": Sample(
        "hermes", '<tool_call>{"arguments": {"x": [{}]}, "name": "now"}</tool_call>', calls=(("now", {"x": [{}]}),)
    ),
    "hermes_text_arguments": Sample(
        "hermes", '<tool_call>{"name": "now", "arguments": "{\\"x\\": 1}"}</tool_call>', calls=(("now", {"x": 1}),)
    ),
    "hermes_no_arguments": Sample("hermes", '<tool_call>{"name": "now"}</tool_call>', calls=(("now", {}),)),
    "hermes_null_arguments": Sample(
        "hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', calls=(("now", {}),)
    ),
    "hermes_bracket_too_many": Sample("hermes", f"<tool_call>{PARIS_JSON}}}</tool_call>", calls=(PARIS,)),
    "hermes_bracket_missing": Sample("hermes", f"<tool_call>{PARIS_JSON[:-1]}</tool_call>!", "!", calls=(PARIS,)),
    "hermes_no_call": Sample("hermes", "Write <tool_call> and <tool_", "Write <tool_call> and <tool_"),
    "hermes_no_call_then_call": Sample("hermes", f"<tool_call> is: {HERMES_PARIS}", "<tool_call> is:", (PARIS,)),
    "hermes_unknown_name": Sample("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", (("f", {}),)),
    "think": Sample(None, "<think>\nWell.\n</think>\n\nHi. ", "Hi. ", reasoning="Well.", thinking="think"),
    "think_begun": Sample(
        None, "Well.\n</think>\n\nHi.", "Hi.", reasoning="Well.", thinking="think", prompt="assistant\n<think>\n"
    ),
    "think_empty": Sample(None, "<think>\n\n</think>\n\nHi.", "Hi.", thinking="think"),
    "think_later_is_text": Sample(None, "Use <think> here.", "Use <think> here.", thinking="think"),
    "think_never_closed": Sample(None, "<think>a < b", reasoning="a < b", thinking="think"),
    "think_then_call": Sample(
        "hermes", f"<think>\nA\n</think>\n\n{HERMES_PARIS}", "", (PARIS,), reasoning="A", thinking="think"
    ),
    "call_in_unclosed_thought": Sample(
        "hermes", f"<think>I call\n{HERMES_PARIS}", "", (PARIS,), reasoning="I call", thinking="think"
    ),
    "example_in_thought_is_thought": Sample(
        "hermes",
        '<think>say <tool_call>{"name": "x", "arguments": {}}</tool_call></think>Hi',
        "Hi",
        reasoning='say <tool_call>{"name": "x", "arguments": {}}</tool_call>',
        thinking="think",
    ),
    "llama_bare": Sample("llama3", '{"name": "get_weather", "parameters": {"city": "Rome"}}', calls=(ROME,)),
    "llama_two": Sample(
        "llama3",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}; {"name": "now", "parameters": {}}',
        calls=(ROME, ("now", {})),
    ),
    "llama_other_json": Sample("llama3", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}'),
    "llama_record": Sample("llama3", '{"name": "now", "age": 3}', '{"name": "now", "age": 3}'),
    "llama_text": Sample("llama3", 'Hi {"name": "now", "parameters": {}}', 'Hi {"name": "now", "parameters": {}}'),
    "mistral_list": Sample("mistral", f"[TOOL_CALLS] [{PARIS_JSON}, {ROME_JSON}]", calls=(PARIS, ROME)),
    "mistral_new": Sample(
        "mistral",
        'Ok.[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}[TOOL_CALLS]now{}',
        "Ok.",
        (ROME, ("now", {})),
    ),
    "mistral_id": Sample("mistral", '[TOOL_CALLS]get_weather[CALL_ID]123456789[ARGS]{"city": "Rome"}', calls=(ROME,)),
    "mistral_think": Sample(None, "[THINK]Hm.[/THINK]Yes", "Yes", reasoning="Hm.", thinking="mistral"),
    "granite": Sample("granite", f"<|tool_call|>[{PARIS_JSON}, {ROME_JSON}]", calls=(PARIS, ROME)),
    "phi4": Sample("phi4", f"<|tool_call|>[{PARIS_JSON}]<|/tool_call|>", calls=(PARIS,)),
    "qwen3_coder": Sample(
        "qwen3_coder",
        "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n<parameter=hourly>\nTrue\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "I look.",
        (("get_weather", {"city": "Paris", "days": 3, "hourly": True}), ("now", {})),
    ),
    "qwen3_coder_text_stays_text": Sample(
        "qwen3_coder",
        "<function=get_weather><parameter=city>\n12\nline \"2\"\n</parameter></function>",
        calls=(("get_weather", {"city": '12\nline "2"'}),),
    ),
    "glm": Sample(
        "glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        calls=(PARIS, ("now", {})),
    ),
    "deepseek_v3": Sample(
        "deepseek",
        "Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Rome"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Ok",
        (ROME, ("now", {})),
    ),
    "deepseek_v31": Sample(
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        calls=(ROME,),
    ),
    "gemma4": Sample(
        "gemma4",
        '<|channel>thought\nHm.\n<channel|><|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|><|tool_response>",
        calls=(PARIS, ("now", {})),
        reasoning="Hm.",
        thinking="gemma4",
    ),
    "gemma4_nested": Sample(
        "gemma4",
        '<|tool_call>call:now{a:{b:[1,<|"|>}, "x"<|"|>,{}],c:null},d:true,e:two words}<tool_call|>',
        calls=(("now", {"a": {"b": [1, '}, "x"', {}], "c": None}, "d": True, "e": "two words"}),),
    ),
    "functiongemma": Sample(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Rome<escape>}<end_function_call><start_function_response>",
        calls=(ROME,),
    ),
    "harmony": Sample(
        "harmony",
        "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Rome"}',
        "I look.",
        (ROME,),
        reasoning="Need it.",
        thinking="harmony",
    ),
    "harmony_recipient_first": Sample(
        "harmony",
        "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        calls=(("now", {}),),
        thinking="harmony",
    ),
    "harmony_final": Sample(
        "harmony",
        "<|channel|>analysis<|message|>Hm <b>.<|end|><|start|>assistant<|channel|>final<|message|>Yes < no.\n",
        "Yes < no.\n",
        reasoning="Hm <b>.",
        thinking="harmony",
    ),
}  # fmt: skip

NAMED = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
Meaning = tuple[str, str, list[tuple[str, str]]]


def new_parser(sample: Sample) -> AnswerParser:
    form = AnswerFormat(sample.tools, sample.thinking)
    marks = frozenset(form.marks(with_tools=True))
    special = frozenset(mark for mark in marks if mark.startswith(("[", "<|")))
    tools = TOOLS if sample.tools is not None else None
    return form.parser(sample.prompt, tools=tools, special=special)()


def meaning(pieces: Sequence[Piece]) -> Meaning:
    content = "".join(text for kind, text in pieces if kind == "content")
    reasoning = "".join(text for kind, text in pieces if kind == "reasoning")
    calls: list[tuple[str, str]] = []
    for kind, text in pieces:
        if kind == "call":
            calls.append((text, ""))
        elif kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return content, reasoning, calls


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
        ends = sorted(drawn.choices(range(len(sample.text) + 1), k=drawn.randint(2, 12)))
        cuts = [sample.text[a:b] for a, b in zip([0, *ends], [*ends, len(sample.text)], strict=True)]
        assert read(sample, cuts) == whole


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
