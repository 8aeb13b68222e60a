"""Ollama's API with tools, thoughts and forms, through Ollama's own package and byte by byte."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import ollama
import pydantic
import pytest
from server_client import ServerClient

USER = [{"role": "user", "content": "Weather in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Say.", "parameters": PARAMETERS}}
CALLS = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Paris", "Köln 🫠")]


@pytest.fixture
def sdk(thinker: ServerClient) -> Iterator[ollama.Client]:
    with thinker.ollama_sdk() as sdk:
        yield sdk


def post(client: ServerClient, path: str = "/api/chat", **fields: Any) -> httpx.Response:
    given = {"messages": USER} if path == "/api/chat" else {"prompt": "Weather in Paris?"}
    return client.post(path, json={"model": "scripted", **given, **fields})


def whole(client: ServerClient, path: str = "/api/chat", **fields: Any) -> dict[str, Any]:
    answer = post(client, path, stream=False, **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def streamed(client: ServerClient, path: str = "/api/chat", **fields: Any) -> dict[str, Any]:
    """The lines put together as clients do it."""
    *parts, end = (json.loads(line) for line in post(client, path, **fields).raise_for_status().text.splitlines())
    assert not any(part["done"] for part in parts)
    assert end["done"]
    assert shown(end) == {"text": ""}
    text = thinking = ""
    calls: list[Any] = []
    for part in parts:
        found = shown(part)
        assert found["text"] or found.get("thinking") or found.get("tool_calls") or part.get("logprobs")
        text += found["text"]
        thinking += found.get("thinking", "")
        calls += found.get("tool_calls", [])
    rows = [row for part in parts for row in part.get("logprobs", [])]
    return {
        "text": text, **({"thinking": thinking} if thinking else {}), **({"tool_calls": calls} if calls else {}),
        "end": [end["done_reason"], end["eval_count"], end["prompt_eval_count"]], "logprobs": rows,
    }  # fmt: skip


def shown(part: dict[str, Any]) -> dict[str, Any]:
    """What an object shows, in the words of /api/generate or in those of /api/chat."""
    one = {**part.get("message", part)}
    found = {"text": one.get("content", one.get("response"))}
    found |= {name: one[name] for name in ("thinking", "tool_calls") if name in one}
    if "tool_calls" in found:
        found["tool_calls"] = [call["function"] for call in found["tool_calls"]]
    return found


def same(answer: dict[str, Any]) -> dict[str, Any]:
    end = [answer["done_reason"], answer["eval_count"], answer["prompt_eval_count"]]
    return {**shown(answer), "end": end, "logprobs": answer.get("logprobs", [])}


def test_thought_text_and_calls(sdk: ollama.Client) -> None:
    message = sdk.chat("scripted", messages=USER, tools=[WEATHER], think=True).message
    assert (message.content, message.thinking) == ("One moment.", "I must look.")
    assert message.tool_calls is not None
    assert [call.function.model_dump() for call in message.tool_calls] == CALLS


def test_function_as_a_tool(sdk: ollama.Client, thinker: ServerClient, sent: Callable[[Any], list[Any]]) -> None:
    def get_weather(city: str) -> str:
        """
        Say what the weather is.

        Args:
            city: Where.
        """
        return city

    seen = sent(thinker)
    parts = list(sdk.chat("scripted", messages=USER, tools=[get_weather], stream=True))
    calls = [call.function for part in parts for call in part.message.tool_calls or []]
    assert [get_weather(**call.arguments) for call in calls] == ["Paris", "Köln 🫠"]
    prompt = thinker.text_of(seen[0][0])
    assert "Say what the weather is." in prompt
    assert '"description": "Where."' in prompt


@pytest.mark.parametrize("fields", [
    {}, {"think": True}, {"think": False}, {"think": "low"}, {"tools": []}, {"logprobs": True, "top_logprobs": 1},
    *({"options": {"num_predict": count}} for count in range(1, 160, 9)),
])  # fmt: skip
def test_streamed_is_whole(thinker: ServerClient, fields: dict[str, Any]) -> None:
    fields = {"tools": [WEATHER], **fields}
    assert streamed(thinker, **fields) == same(whole(thinker, **fields))
    del fields["tools"]
    assert streamed(thinker, "/api/generate", **fields) == same(whole(thinker, "/api/generate", **fields))


@pytest.mark.parametrize(("think", "thinking"), [
    (None, "I must look."), (True, "I must look."), ("high", "I must look."), (False, None),
])  # fmt: skip
def test_thoughts(thinker: ServerClient, think: Any, thinking: str | None) -> None:
    answer = shown(whole(thinker, tools=[WEATHER], think=think))
    assert (answer["text"], answer.get("thinking"), answer["tool_calls"]) == ("One moment.", thinking, CALLS)
    answer = shown(whole(thinker, "/api/generate", think=think))
    assert answer.get("thinking") == thinking
    assert answer["text"].startswith("One moment.\n<tool_call>"), "no tools were offered, so this is text"


def test_model_that_cannot_think(client: ServerClient) -> None:
    for path in ("/api/chat", "/api/generate"):
        for think in (True, "low"):
            answer = post(client, path, think=think)
            assert answer.status_code == 400
            assert "'think'" in answer.json()["error"]
        assert post(client, path, think=False, stream=False).status_code == 200


class City(pydantic.BaseModel):
    """A form for an answer."""

    city: str


@pytest.mark.parametrize("form", ["json", City.model_json_schema()])
def test_forms(start_server: Any, sent: Callable[[Any], list[Any]], templates: dict[str, str], form: Any) -> None:
    reply = '{"city": "Rome"}'
    with start_server(chat_template=templates["thoughts"], reply=reply) as client:
        seen = sent(client)
        with client.ollama_sdk() as sdk:
            assert sdk.chat("scripted", messages=USER, format=form).message.content == reply
            assert sdk.generate("scripted", "x", format=form).response == reply
            assert sdk.generate("scripted", "x", raw=True, format=form).response == reply
    assert len(seen) == 3
    for _, params in seen:
        assert ("city" in params.grammar.text) == (form != "json")


def test_tools_are_shown(thinker: ServerClient, sent: Callable[[Any], list[Any]]) -> None:
    seen = sent(thinker)
    calls = [{"function": {"name": "get_weather", "arguments": {"city": "Rom 🫠"}}}]
    messages = [
        *USER, {"role": "assistant", "content": "I look.", "thinking": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_name": "get_weather", "content": "rain"},
    ]  # fmt: skip
    whole(thinker, messages=messages, tools=[WEATHER], options={"num_predict": 1})
    prompt = thinker.text_of(seen[0][0])
    (line,) = (line for line in prompt.splitlines() if '"parameters"' in line)
    assert json.loads(line.rpartition("system")[2]) == WEATHER
    assert "<think>Hm.</think>I look.<tool_call>" in prompt
    assert '"Rom 🫠"' in prompt
    assert "<|im_start|>tool get_weather\nrain<|im_end|>" in prompt


def test_arguments_that_are_no_json_come_as_text(start_server: Any, templates: dict[str, str]) -> None:
    reply = '<tool_call>{"name": "get_weather", "arguments": [1, 2]}</tool_call>'
    with start_server(chat_template=templates["tools"], reply=reply) as client:
        (call,) = shown(whole(client, tools=[WEATHER]))["tool_calls"]
        assert call == {"name": "get_weather", "arguments": {"INVALID_JSON": "[1, 2]"}}
        assert streamed(client, tools=[WEATHER])["tool_calls"] == [call]


def test_suffix(start_server: Any, sent: Callable[[Any], list[Any]]) -> None:
    tokens = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    with start_server(more_special_tokens=tokens, reply="b") as client:
        seen = sent(client)
        answer = whole(client, "/api/generate", prompt="a", suffix="c")
        assert answer["response"] == "b"
        assert whole(client, "/api/generate", prompt="", suffix="c")["response"] == "b"
        same = client.post("/v1/completions", json={"prompt": "a", "suffix": "c"}).json()
        assert "insert" in client.post("/api/show", json={"model": "scripted"}).json()["capabilities"]
    assert seen[0][0] == seen[2][0]
    assert same["usage"]["prompt_tokens"] == answer["prompt_eval_count"]
    assert seen[0][1].stop_token_ids == seen[2][1].stop_token_ids


def test_model_that_cannot_fill_in(client: ServerClient) -> None:
    answer = post(client, "/api/generate", suffix="x")
    assert answer.status_code == 400
    assert "'suffix' cannot be used" in answer.json()["error"]


def test_truncate_drops_the_oldest_turns(start_server: Any) -> None:
    turns = [{"role": role, "content": "Some words."} for _ in range(12) for role in ("user", "assistant")]
    with start_server(max_model_len=256) as client:
        fields = {"messages": [*turns, USER[0]], "options": {"num_predict": 8}}
        assert "maximum context length" in post(client, **fields).json()["error"]
        assert whole(client, **fields, truncate=True)["prompt_eval_count"] <= 248


def test_capabilities(thinker: ServerClient) -> None:
    shown = thinker.post("/api/show", json={"model": "scripted"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
