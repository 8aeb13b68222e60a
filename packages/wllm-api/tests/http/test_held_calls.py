"""Tools of `tool_choice` auto: what is held to their schemas reaches the engine, what cannot be is refused or told."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from wllm_api import held_calls as held_calls_module
from wllm_api.engine.scripted_model import build_tokenizer, describe
from wllm_api.errors import GrammarError
from wllm_api.grammars import GrammarChecker
from wllm_api.held_calls import held_calls
from wllm_api.http_errors import InvalidRequest
from wllm_api.model import ServedModel
from wllm_api.schemas.tools import Tool
from wllm_api.settings import Parsers
from wllm_api.testing import sse_data
from wllm_api.tool_offer import ToolUse, tool_offer
from wllm_api.tools import arguments_schema
from wllm_sched import Grammar

HERMES = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}<tool_call></tool_call>{# </think> #}"
UNKNOWN = {"type": "object", "properties": {"a": {"type": "array", "items": {}, "contains": {"const": 1}}}}
KNOWN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def tool(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.fixture(scope="module")
def client(start_server: Any) -> Iterator[httpx.Client]:
    with start_server(chat_template=HERMES, reply="ok") as client:
        yield client


def ask(client: httpx.Client, *tools: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, **fields}
    return client.post("/v1/chat/completions", json=body)


def test_what_cannot_be_kept_is_told(client: httpx.Client) -> None:
    answer = ask(client, tool("f", KNOWN), tool("g", UNKNOWN), unknown_field=1)
    assert answer.status_code == 200
    assert answer.headers["X-Wllm-Ignored"] == "unknown_field, tools[1].function.parameters"
    assert "X-Wllm-Ignored" not in ask(client, tool("f", KNOWN), tool("g", {})).headers


@pytest.mark.parametrize(("path", "body", "place"), [
    ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": KNOWN}, {
        "type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g", "parameters": UNKNOWN}]}]},
     "tools[1].tools[0].parameters"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "functions": [
        {"name": "f", "parameters": KNOWN}, {"name": "g", "parameters": UNKNOWN}]}, "functions[1].parameters"),
    ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "tools": [
        {"name": "f", "input_schema": KNOWN}, {"name": "g", "input_schema": UNKNOWN}]}, "tools[1].input_schema"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}],
                              "tools": [tool("f", KNOWN), tool("g", UNKNOWN)], "tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
            {"type": "function", "function": {"name": "g"}}]}}}, "tools[1].function.parameters"),
])  # fmt: skip
def test_each_api_has_its_own_name_for_it(client: httpx.Client, path: str, body: Any, place: str) -> None:
    assert client.post(path, json=body).headers["X-Wllm-Ignored"] == place


def test_strict_is_kept_or_refused(client: httpx.Client) -> None:
    assert ask(client, tool("f", KNOWN, strict=True), tool("g", UNKNOWN)).status_code == 200
    answer = ask(client, tool("f", KNOWN), tool("g", UNKNOWN, strict=True))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[1].function.parameters"
    assert "'contains' at /properties/a" in error["message"]


def test_deep_schema_is_no_fault_of_the_server(client: httpx.Client) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    assert "tools[0]" in ask(client, tool("f", deep)).headers["X-Wllm-Ignored"]
    assert ask(client, tool("f", deep, strict=True)).status_code == 400


def served(template: str, parser: str = "auto") -> ServedModel:
    info = describe(build_tokenizer(), max_model_len=99, num_blocks=9, chat_template=template)
    return ServedModel(info, Parsers(tools=parser))


def held(model: ServedModel, *tools: dict[str, Any], prompt: str = "", **use: Any) -> Any:
    offer = tool_offer(ToolUse([Tool.model_validate(one) for one in tools], **use), model)
    return asyncio.run(held_calls(offer, model, prompt))


def test_grammar_says_where_it_begins() -> None:
    model = served(HERMES)
    opening = held(model, tool("f", KNOWN)).grammar.opening
    assert opening.thought == ("<think>", "</think>") and opening.repeats and not opening.thought_begun
    assert held(model, tool("f", KNOWN), prompt="<think>\n").grammar.opening.thought_begun
    assert not held(model, tool("f", KNOWN), parallel=False).grammar.opening.repeats


def test_loose_tool_leaves_the_others_held() -> None:
    calls = held(served(HERMES), tool("f", KNOWN), tool("g", UNKNOWN))
    assert '"required": ["a"]' in calls.grammar.text and "contains" not in calls.grammar.text


def test_arguments_have_no_other_names() -> None:
    """As in a forced call: what a schema names is all there is, unless it says that there may be more."""
    more = {**KNOWN, "additionalProperties": True}
    text = held(served(HERMES), tool("f", KNOWN), tool("g", more)).grammar.text
    assert text.count('"additionalProperties": false') == 1 and text.count('"additionalProperties": true') == 1
    unnamed = {"type": "function", "function": {"name": "now"}}
    assert '"properties": {}, "additionalProperties": false' in held(served(HERMES), unnamed).grammar.text


def test_forced_calls_have_a_grammar_of_their_own() -> None:
    for choice in ("required", "none"):
        assert held(served(HERMES), tool("f", KNOWN), choice=choice).grammar is None


def test_tokenizer_that_grammars_do_not_know() -> None:
    model = served(HERMES)
    model.grammars._tokenizer_json = "{}"
    calls = held(model, tool("f", KNOWN))
    assert calls.grammar is None and calls.loose == ("tools[0].function.parameters",)
    with pytest.raises(InvalidRequest, match="strict"):
        held(model, tool("f", KNOWN, strict=True))


def test_many_tools() -> None:
    tools = [tool(f"f{number}", KNOWN) for number in range(128)]
    assert held(served(HERMES), *tools).grammar.text.count('"required": ["a"]') == 128


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    "reply", ['{"a": 1} ', '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'], ids=["form", "call"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_tools_beside_a_form(start_server: Any, reply: str, stream: bool) -> None:
    """The model may call a tool first, and answers in the form otherwise, even where its prompt begins a thought."""
    with start_server(chat_template=HERMES + "{{ '<think>' }}", reply=reply) as client:
        answer = ask(client, tool("f", KNOWN), response_format=FORM, stream=stream)
        assert answer.status_code == 200 and "X-Wllm-Ignored" not in answer.headers
        texts, calls = "", ""
        for chunk in sse_data(answer.text.splitlines()) if stream else [answer.json()]:
            for choice in chunk["choices"] if chunk else []:
                message = choice["delta" if stream else "message"]
                assert not message.get("reasoning")
                texts += message.get("content") or ""
                calls += "".join(call["function"]["arguments"] for call in message.get("tool_calls") or [])
        assert (texts, calls) == ((reply, "") if reply.startswith("{") else ("", '{"a": 1}'))


@pytest.mark.parametrize("fields", [
    {"guided_choice": ["ok", "no"]}, {"guided_regex": "ok|no"}, {"guided_grammar": 'start: "ok" | "no"'},
    {"guided_grammar": 'root ::= "ok" | "no"'}, {"guided_json": {"const": "ok"}}, {"guided_choice": ["<|im_end|>"]},
    {"response_format": {"type": "json_object"}},
])  # fmt: skip
def test_tools_beside_every_kind_of_form(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = ask(client, tool("f", KNOWN), **fields)
    assert answer.status_code == 200 and "X-Wllm-Ignored" not in answer.headers
    assert answer.json()["choices"][0]["message"]["content"] == "ok"


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "gemma4", "harmony"])
@pytest.mark.parametrize("wrong", [{"required": [{}]}, {"required": "a"}, {"enum": 3}, {"properties": [1]}], ids=str)
def test_schema_of_a_wrong_form_is_not_kept(parser: str, wrong: dict[str, Any]) -> None:
    offered = tool("f", {"type": "object", "properties": {"a": {"type": "string"}}, **wrong})
    assert held(served(HERMES, parser), offered).loose == ("tools[0].function.parameters",)


def test_form_alone_for_a_model_that_cannot_have_both(start_server: Any) -> None:
    harmony = "{{ tools }}{{ messages }}<|start|>assistant<|channel|>final<|message|>"
    with start_server(chat_template=harmony, reply="{}") as client:
        answer = ask(client, tool("f", KNOWN, strict=True), response_format=FORM)
        assert answer.headers["X-Wllm-Ignored"] == "tools"
        assert answer.json()["choices"][0]["message"]["content"] == "{}"


def test_tools_that_nobody_waits_for_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def slow(self: GrammarChecker, grammar: Grammar) -> Grammar:
        tried.append(grammar)
        time.sleep(0.05)
        raise GrammarError("It takes long.")

    monkeypatch.setattr(GrammarChecker, "check_grammar_now", slow)
    monkeypatch.setattr(held_calls_module, "TIMEOUT_S", 0.1)
    names = [f"f{number}" for number in range(30)]
    calls = held(served(HERMES), *(tool(name, KNOWN) for name in names))
    assert calls.grammar is None and len(calls.loose) == len(names)
    assert len(tried) < 6


@pytest.mark.parametrize("kind", ["integer", "array", "null", ["string", "null"]])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_arguments_of_another_type_are_refused(client: httpx.Client, kind: Any, choice: Any) -> None:
    answer = ask(client, tool("f", {"type": kind}), tool_choice=choice)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools[0].function.parameters"


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_arguments_of_another_type_are_refused_by_each_api(client: httpx.Client, api: str) -> None:
    messages = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    named = {"name": "f", "input_schema" if api == "messages" else "parameters": {"type": "integer"}}
    body = messages if api == "messages" else {"input": "Hi"}
    answer = client.post(
        f"/v1/{api}", json={**body, "tools": [named if api == "messages" else {"type": "function", **named}]}
    )
    assert answer.status_code == 400 and "arguments are an object" in answer.json()["error"]["message"]


def test_arguments_are_never_null() -> None:
    assert arguments_schema({"type": ["null", "object"]})["type"] == "object"
