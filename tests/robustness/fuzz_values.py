"""What goes into the bodies of the fuzzer: good values by field name, and hostile ones for any place.

A hostile value is JSON text, not an object: most of them are no JSON, or not what a parser would write again.
"""

from __future__ import annotations

import json
import random
from typing import Any

TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}},
}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hé"}]}]

# A field that is not here gets a hostile value only.
GOOD: dict[str, tuple[Any, ...]] = {
    "model": ("scripted",),
    "messages": (MESSAGES, [{"role": "user", "content": "Hi 🫠"}], [{"role": "assistant", "content": "So"}]),
    "prompt": ("Hello", "", [5, 6, 7], ["a", "b"], [[5], [6, 7]]),
    "input": ("Hello", MESSAGES, ["a", "b"], [{"role": "user", "content": "Hi"}]),
    "query": ("what", {"text": "what"}),
    "documents": (["a", "b"], [{"text": "a"}, "b"]),
    "text_1": ("a",),
    "text_2": ("b", ["b", "c"]),
    "tokens": ([5, 6, 7],),
    "name": ("scripted",),
    "max_tokens": (1, 3, -1, 4000),
    "max_completion_tokens": (2,),
    "max_output_tokens": (2,),
    "stream": (True, False),
    "stream_options": ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}),
    "n": (1, 3, 128),
    "best_of": (1, 3),
    "temperature": (0, 0.5, 2),
    "top_p": (0, 0.5, 1),
    "top_k": (-1, 0, 40),
    "min_p": (0, 0.1),
    "seed": (0, 7, -1),
    "stop": ("e", ["x", "the"], []),
    "stop_sequences": (["e"],),
    "logprobs": (True, 2, 0),
    "top_logprobs": (0, 2, 20),
    "prompt_logprobs": (0, 2),
    "logit_bias": ({"5": 100}, {"5": -100}, {}),
    "echo": (True,),
    "ignore_eos": (True,),
    "min_tokens": (0, 5),
    "stop_token_ids": ([5, 6],),
    "allowed_token_ids": ([5, 6], [299]),
    "bad_words": (["the"],),
    "repetition_penalty": (1.2,),
    "presence_penalty": (1.5, -2),
    "frequency_penalty": (1.5, -2),
    "truncate_prompt_tokens": (1, -1, 0),
    "return_token_ids": (True,),
    "return_tokens_as_token_ids": (True,),
    "response_format": (
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    ),
    "structured_outputs": ({"choice": ["a", "b"]}, {"regex": "[a-z]+"}, {"json": {"type": "integer"}}),
    "guided_regex": ("[ab]+",),
    "guided_choice": (["a"],),
    "tools": ([TOOL], [{"type": "function", "name": "f", "parameters": {"type": "object"}}]),
    "tool_choice": ("auto", "none", "required", {"type": "function", "function": {"name": "look_up"}}),
    "parallel_tool_calls": (False,),
    "continue_final_message": (True,),
    "add_generation_prompt": (False,),
    "chat_template_kwargs": ({"enable_thinking": True},),
    "reasoning": ({"effort": "low"},),
    "reasoning_effort": ("low",),
    "thinking": ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}),
    "text": ({"format": {"type": "text"}},),
    "instructions": ("Be brief.",),
    "system": ("Be brief.", [{"type": "text", "text": "Be brief."}]),
    "suffix": ("end",),
    "options": ({"num_predict": 3, "seed": 1}, {"num_ctx": 64}),
    "format": ("json", {"type": "object"}),
    "raw": (True,),
    "keep_alive": (0, "5m"),
    "think": (True,),
    "template": ("{{ .Prompt }}",),
    "cache_salt": ("salt",),
    "request_id": ("my-id",),
    "encoding_format": ("float", "base64"),
    "dimensions": (4,),
    "top_n": (1,),
    "metadata": ({"a": "b"},),
}


SMALL = (
    "null", "true", "false", "0", "-1", "-0", "1", "2", "1.5", "1e308", "-1e308", "1e999", "-1e999", "1e-400",
    "NaN", "Infinity", "-Infinity", "01", "0x10", "1_000", "+1", ".5", "1.", "--1", "300", "299", "4096",
    "9" * 30, "9" * 400, "9" * 5000, "-" + "9" * 30, str(2**31), str(2**63 - 1), str(2**63), str(-(2**63) - 1),
    str(2**64), '""', '" "', '"x"', '"1"', '"true"', '"null"', '"\\u0000"', '"\\ud83e"', '"\\udee0\\ud83e"',
    '"\\ud83e\\udee0"', '"\\r\\n\\t"', '"\n"', '"\ufeff"', '"\u2028"', '"{{ 1/0 }}"', '"<|im_start|>system"',
    '"{% for a in range(999999999) %}x{% endfor %}"', '"</think><tool_call>{"', '"..\\\\..\\\\x"',
    '"(a+)+$"', '"[a-z]{1,99999}"', "[]", "{}", "[null]", "[[]]", "[{}]", '{"": ""}', '{"a": null}', '[""]', "[0]",
    "[-1]", "[1.5]", "[true]", '{"type": "text"}', '{"type": "function"}', '{"$ref": "#/a"}',
    '{"type": "object", "properties": {"a": {"$ref": "#"}}}', '{"$ref": "https://example.org/schema"}',
    '{"type": "json_schema", "json_schema": {}}', '[{"role": "user"}]', '[{"role": "user", "content": null}]',
    '[{"role": "tool", "content": "x"}]',
    '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]',
    '[{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]',
    '{"a": 1, "a": 2}', '{"__proto__": {}, "constructor": 1}', "{'a': 1}", "[1,]", '{"a" 1}', "",
    "/* */ 1", "undefined",
)  # fmt: skip


# Names that objects inside of requests have, so that nested values get behind the checks of their kinds.
_NAMES = (
    "type", "text", "role", "content", "format", "effort", "source", "name", "arguments", "function", "tool_calls",
    "input", "id", "parameters", "schema", "tools", "mode", "thinking", "x",
)  # fmt: skip
_WORDS: tuple[Any, ...] = (
    "", "x", "text", "user", "assistant", "function", "tool_use", "tool_result", "json_schema", "allowed_tools", "auto",
    "reasoning", "message", -1, 0, 2**70, 0.5, 1e308, True, None, "🫠", "\x00",
)  # fmt: skip


def _nested(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 3 or kind < 0.4:
        return rng.choice(_WORDS)
    if kind < 0.6:
        return [_nested(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(_NAMES): _nested(rng, depth + 1) for _ in range(rng.randint(1, 4))}


def hostile(rng: random.Random) -> str:
    """The JSON text of a value that somebody forgot to expect."""
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(SMALL)
    if kind < 0.8:
        return json.dumps(_nested(rng))
    length = rng.choice((100, 5000, 100_000))
    depth = rng.choice((20, 300, rng.randrange(800, 1000), rng.randrange(800, 1000), 2000, 100_000))
    match rng.randrange(7):
        case 0:
            return '"' + "a" * length + '"'
        case 1:
            return '"' + "é龜🫠" * (length // 3) + '"'
        case 2:
            return "[" + ",".join(["1"] * length) + "]"
        case 3:
            return "[" + ",".join(['"a"'] * (length // 10)) + "]"
        case 4:
            return "[" * depth + "]" * depth
        case 5:
            return '{"a":' * depth + "1" + "}" * depth
        case _:
            return "[" * depth
