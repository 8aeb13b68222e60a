"""`functions` and `function_call`: OpenAI's older spelling of tools, in requests, histories and answers."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_client import ServerClient

from wllm_api.testing import sse_data

USER = [{"role": "user", "content": "Weather in Paris?"}]
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
NOW = {"name": "now"}
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}<tool_call></tool_call>{% for m in messages %}"
    "<|im_start|>{{ m.role }} {{ m.tool_call_id }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.id }} {{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'


@pytest.fixture(scope="module")
def caller(start_server: Any) -> Iterator[ServerClient]:
    with start_server(chat_template=TEMPLATE, reply=f"One moment.\n{CALL}{CALL}") as client:
        yield client


def post(client: ServerClient, **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": USER, **fields})


def whole(client: ServerClient, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = post(client, **fields).raise_for_status().json()["choices"][0]
    return choice


def streamed(client: ServerClient, **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    events: Iterator[Any] = sse_data(post(client, stream=True, **fields).text.splitlines())
    for chunk in events:
        if chunk is not None:
            (choice,) = chunk["choices"]
            delta = choice["delta"]
            message["content"] += delta.get("content", "")
            for name, text in delta.get("function_call", {}).items():
                message.setdefault("function_call", {"name": "", "arguments": ""})[name] += text
    message["content"] = message["content"] or None
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": choice["finish_reason"]}


def test_call_comes_back_in_the_same_spelling(caller: ServerClient) -> None:
    choice = whole(caller, functions=[WEATHER, NOW])
    assert choice["message"] == {
        "role": "assistant",
        "content": "One moment.",
        "refusal": None,
        "function_call": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    assert choice["finish_reason"] == "function_call"


@pytest.mark.parametrize(
    "fields", [{}, {"parallel_tool_calls": True}, *({"max_tokens": count} for count in range(10, 110, 9))]
)
def test_streamed_is_whole(caller: ServerClient, fields: dict[str, Any]) -> None:
    assert streamed(caller, functions=[WEATHER], **fields) == whole(caller, functions=[WEATHER], **fields)


def test_sdk_reads_both(caller: ServerClient) -> None:
    fields: dict[str, Any] = {"model": "scripted", "messages": USER, "functions": [WEATHER]}
    with caller.openai_sdk() as sdk:
        call = sdk.chat.completions.create(**fields).choices[0].message.function_call
        deltas = [chunk.choices[0].delta.function_call for chunk in sdk.chat.completions.create(**fields, stream=True)]
    assert call is not None
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert "".join(delta.arguments or "" for delta in deltas if delta is not None) == call.arguments
    assert [delta.name for delta in deltas if delta is not None and delta.name] == ["get_weather"]


def test_functions_are_shown_as_tools(caller: ServerClient) -> None:
    def prompt_tokens(**fields: Any) -> int:
        count: int = post(caller, max_tokens=1, **fields).raise_for_status().json()["usage"]["prompt_tokens"]
        return count

    tools = [{"type": "function", "function": function} for function in (WEATHER, NOW)]
    shown = prompt_tokens(functions=[WEATHER, NOW])
    assert shown == prompt_tokens(tools=tools) == prompt_tokens(functions=[WEATHER, NOW], function_call="auto")
    assert shown > prompt_tokens() == prompt_tokens(functions=[WEATHER, NOW], function_call="none")


def test_forced_call(start_server: Any) -> None:
    with start_server(reply='{"city": "Rome"}') as client:
        fields = {"functions": [NOW, WEATHER], "function_call": {"name": "get_weather"}}
        choice = whole(client, **fields)
        assert choice["message"]["content"] is None
        assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
        assert choice["finish_reason"] == "stop"
        assert streamed(client, **fields) == choice


def test_history(caller: ServerClient) -> None:
    messages = [
        *USER,
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": '{"zone":1}'}},
        {"role": "function", "name": "now", "content": "12:00"},
    ]
    prompt = caller.prompt_of(messages=messages)
    call = json.dumps({"name": "now", "arguments": {"zone": 1}})
    # One id for both, of the form that all templates take.
    assert f"<tool_call>function0 {call}</tool_call>" in prompt
    assert "<|im_start|>tool function0\n12:00" in prompt


@pytest.mark.parametrize(("fields", "param"), [
    ({"functions": [{"name": "a b"}]}, "functions[0].name"),
    ({"functions": [NOW], "function_call": {"name": "later"}}, "function_call"),
    ({"functions": [NOW], "function_call": "required"}, "function_call"),
    ({"functions": [NOW], "tools": [{"type": "function", "function": NOW}]}, "functions"),
    ({"functions": "x"}, "functions"),
])  # fmt: skip
def test_refusals(caller: ServerClient, fields: dict[str, Any], param: str) -> None:
    answer = post(caller, **fields)
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"] or "").startswith(param)
