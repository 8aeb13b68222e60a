"""Conversations as clients send them: parts, tool calls, late system messages, beginnings to be continued."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import httpx
import pytest
from cases.odd_model import TEMPLATE
from cases.requests import CHAT, HI, ask, refusal, stream, streamed_text, text_of
from transformers.utils.chat_template_utils import render_jinja_template

CALL = {"id": "0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Boston"}'}}
INTROSPECT = {"name": "introspect", "description": None, "parameters": {"properties": {}, "type": "object"}}


def prompt_of(client: httpx.Client, **body: Any) -> str:
    return str(ask(client, "/detokenize", tokens=ask(client, "/tokenize", **body)["tokens"])["prompt"])


@pytest.mark.parametrize("assistant", [
    {"tool_calls": [CALL]}, {"tool_calls": [CALL], "content": None}, {"tool_calls": [CALL], "content": ""},
    {"tool_calls": [CALL], "name": None, "refusal": None}, {"tool_calls": [], "content": "Wait."},
])  # fmt: skip
@pytest.mark.parametrize("result", ["22 C", [{"type": "text", "text": "22 C"}]])
def test_r19_an_agents_history_is_taken(http: httpx.Client, assistant: dict[str, Any], result: object) -> None:
    """huggingface/text-generation-inference#3021; this model's template knows no tools, so they become text."""
    messages = [
        {"role": "user", "content": "Weather in Boston?"}, {"role": "assistant", **assistant},
        {"role": "tool", "tool_call_id": "0", "content": result}, {"role": "user", "content": "Thanks"},
    ]  # fmt: skip
    ask(http, CHAT, messages=messages, max_tokens=1)
    prompt = prompt_of(http, messages=messages)
    assert "22 C" in prompt and ("Boston" in prompt.replace("Weather in Boston?", "")) == bool(assistant["tool_calls"])


def test_r20_a_tool_without_a_description_is_taken(http: httpx.Client) -> None:
    """VirtusLab/llm-tools-mcp#51"""
    missing = {name: value for name, value in INTROSPECT.items() if value is not None}
    null, plain = ([{"type": "function", "function": function}] for function in (INTROSPECT, missing))
    answers = [ask(http, CHAT, messages=HI, max_tokens=4, tools=t, tool_choice="auto", seed=1) for t in (null, plain)]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert answers[0]["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"] > 50


@pytest.mark.parametrize("fields", [
    {"tools": None, "tool_choice": None, "parallel_tool_calls": None}, {"tools": []},
    {"tools": [], "tool_choice": "none"},
])  # fmt: skip
def test_r21_no_tools_are_no_fault(odd: httpx.Client, fields: dict[str, Any]) -> None:
    """camel-ai/camel#1585, evalstate/fast-agent#781"""
    body = {"messages": HI, "max_tokens": 4, "temperature": 0}
    assert text_of(ask(odd, CHAT, **body, **fields)) == text_of(ask(odd, CHAT, **body))
    assert refusal(odd, CHAT, **body, tools=[], tool_choice="required")["param"] == "tool_choice"


@pytest.mark.parametrize("messages", [
    [{"role": "system", "content": "Be brief."}, *HI, {"role": "assistant", "content": "Hello."},
     {"role": "system", "content": "Now answer in French."}, {"role": "user", "content": "Who are you?"}],
    [*HI, *HI], [{"role": "assistant", "content": "Hello."}, *HI],
])  # fmt: skip
def test_r22_unusual_orders_are_taken(http: httpx.Client, messages: list[dict[str, str]]) -> None:
    """vllm-project/vllm#44505; templates that refuse them: `test_templates.py`."""
    ask(http, CHAT, messages=messages, max_tokens=1)
    prompt = prompt_of(http, messages=messages)
    assert all(message["content"] in prompt for message in messages)


def test_r23_text_parts_are_the_joined_text(http: httpx.Client) -> None:
    """Blaizzy/mlx-vlm#1137, abetlen/llama-cpp-python#2324"""
    plain = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "tell me a riddle"}]
    cut = [
        {"role": message["role"], "content": [{"type": "text", "text": text} for text in pieces]}
        for message, pieces in zip(plain, (("You are ", "helpful."), ("tell me a ", "riddle")), strict=True)
    ]
    whole, parts = (ask(http, CHAT, messages=messages, max_tokens=3, temperature=0) for messages in (plain, cut))
    assert whole["usage"]["prompt_tokens"] == parts["usage"]["prompt_tokens"] and text_of(whole) == text_of(parts)
    for kind in ("image_url", "input_audio", "hologram"):
        part = [{"type": "text", "text": "x"}, {"type": kind, kind: {"url": "x"}}]
        assert kind in refusal(http, CHAT, messages=[{"role": "user", "content": part}])["message"]
    empty = [ask(http, "/tokenize", messages=[{"role": "user", "content": c}])["tokens"] for c in ("", [])]
    assert empty[0] == empty[1]


BEGUN = "Here is a common saying about apple. An apple a day, keeps"


@pytest.mark.parametrize("begun", [BEGUN, BEGUN + " "])
def test_r25_a_begun_answer_is_continued(http: httpx.Client, begun: str) -> None:
    """vllm-project/vllm#10111"""
    messages = [{"role": "user", "content": "tell me a common saying"}, {"role": "assistant", "content": begun}]
    body: dict[str, Any] = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert prompt_of(http, **body).endswith(begun)
    body |= {"temperature": 0, "max_tokens": 4}
    answer = text_of(ask(http, CHAT, **body))
    assert answer and not answer.startswith("Here")
    if begun == BEGUN:  # behind a blank the model itself may well begin with another one
        assert answer.startswith(" ") and "  " not in begun + answer
    assert streamed_text(stream(http, CHAT, **body)) == answer
    assert text_of(ask(http, CHAT, **body, echo=True)) == begun + answer
    assert streamed_text(stream(http, CHAT, **body, echo=True)) == begun + answer
    ids = ask(http, "/tokenize", **{k: body[k] for k in body if k not in ("temperature", "max_tokens")})["tokens"]
    same = ask(http, "/v1/completions", prompt=ids, temperature=0, max_tokens=4)
    assert text_of(same) == answer


def test_r26_a_template_is_rendered_as_transformers_does(odd: httpx.Client) -> None:
    """oobabooga/textgen#6675, anomalyco/opencode#4049"""
    tools = [{"type": "function", "function": {"name": "measure", "description": "größe <b>", "parameters": {}}}]
    before = datetime.now()
    prompt = prompt_of(odd, messages=HI, tools=tools)
    (expected,), _ = render_jinja_template([HI], tools, chat_template=TEMPLATE, add_generation_prompt=True)
    assert before.date() != datetime.now().date() or prompt == expected
    assert json.dumps(tools[0], ensure_ascii=False) in prompt
    ask(odd, CHAT, messages=HI, tools=tools, tool_choice="none", max_tokens=1)
