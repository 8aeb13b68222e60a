"""Answers as each family writes them, and what they mean."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from wllm_api.tools import Piece

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


# Text, thoughts, and calls by name and arguments as they are written.
Meaning = tuple[str, str, list[tuple[str, str]]]


def meaning(pieces: Sequence[Piece]) -> Meaning:
    """What the pieces of an answer say, joined."""
    content = "".join(text for kind, text in pieces if kind == "content")
    reasoning = "".join(text for kind, text in pieces if kind == "reasoning")
    calls: list[tuple[str, str]] = []
    for kind, text in pieces:
        if kind == "call":
            calls.append((text, ""))
        elif kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return content, reasoning, calls


def in_pieces(text: str, drawn: random.Random) -> list[str]:
    """`text` cut at random, into up to thirteen pieces; some may be empty."""
    ends = sorted(drawn.choices(range(len(text) + 1), k=drawn.randint(1, 12)))
    return [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)])]
