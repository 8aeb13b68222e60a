"""/v1/responses with tools, thoughts and forms, through OpenAI's own SDK and byte by byte."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from server_client import ServerClient

from wllm_api.testing import sse_events

WEATHER: dict[str, Any] = {
    "type": "function", "name": "get_weather", "description": "The weather.", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                   "additionalProperties": False},
}  # fmt: skip
NOW: dict[str, Any] = {"type": "function", "name": "now"}
CITIES = ["Paris", "Köln 🫠"]
ALL = ["reasoning", "message", "function_call", "function_call"]


@pytest.fixture
def sdk(thinker: ServerClient) -> Iterator[openai.OpenAI]:
    with thinker.openai_sdk() as sdk:
        yield sdk


def post(client: ServerClient, **fields: Any) -> httpx.Response:
    return client.post("/v1/responses", json={"input": "Weather in Paris?", **fields})


def whole(client: ServerClient, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = client.ask("/v1/responses", **{"input": "Weather in Paris?", **fields})
    return body


def streamed(client: ServerClient, **fields: Any) -> dict[str, Any]:
    """The last event's response, after a check of every event before it against what it says."""
    events: list[Any] = list(sse_events(post(client, stream=True, **fields).text.splitlines()))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [events.pop(0)["type"] for _ in range(2)] == ["response.created", "response.in_progress"]
    end = events.pop()
    response: dict[str, Any] = end["response"]
    assert end["type"] == f"response.{response['status']}"
    for number, item in enumerate(response["output"]):
        mine = [event for event in events if event["output_index"] == number]
        assert mine == events[: len(mine)], "items come one after another"
        del events[: len(mine)]
        check_item(mine, item)
    assert not events
    return response


def check_item(events: list[dict[str, Any]], item: dict[str, Any]) -> None:
    added, done = events.pop(0), events.pop()
    assert (added["type"], done["type"]) == ("response.output_item.added", "response.output_item.done")
    assert done["item"] == item
    assert added["item"]["status"] == "in_progress"
    assert all(event["item_id"] == item["id"] for event in events)
    if item["type"] == "function_call":
        assert added["item"] == {**item, "arguments": "", "status": "in_progress"}
        name, field, text = "function_call_arguments", "arguments", item["arguments"]
    else:
        assert added["item"] == {**item, "content": [], "status": "in_progress"}
        begun, ended = events.pop(0), events.pop()
        assert (begun["type"], ended["type"]) == ("response.content_part.added", "response.content_part.done")
        (part,) = item["content"]
        assert ended["part"] == part
        assert begun["part"] == {**part, "text": "", **({"logprobs": []} if "logprobs" in part else {})}
        assert all(event["content_index"] == 0 for event in (begun, *events, ended))
        name, field, text = part["type"], "text", part["text"]
    last = events.pop()
    assert (last["type"], last[field]) == (f"response.{name}.done", text)
    assert {event["type"] for event in events} <= {f"response.{name}.delta"}
    assert "".join(event["delta"] for event in events) == text


def same(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what may differ from one request to the next."""
    kept = {name: value for name, value in response.items() if name not in ("id", "created_at", "completed_at")}
    kept["output"] = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")} for item in response["output"]
    ]
    return {**kept, "usage": {**response["usage"], "input_tokens_details": None}}


def test_items(sdk: openai.OpenAI) -> None:
    tools: Any = [WEATHER]
    answer = sdk.responses.create(model="scripted", input="Weather in Paris?", tools=tools)
    thought, message, *calls = answer.output
    assert (thought.type, message.type, answer.output_text) == ("reasoning", "message", "One moment.")
    assert thought.type == "reasoning" and thought.content is not None
    assert ([part.text for part in thought.content], thought.summary) == (["I must look."], [])
    found = [(call.name, json.loads(call.arguments)) for call in calls if call.type == "function_call"]
    assert found == [("get_weather", {"city": city}) for city in CITIES]
    assert len({call.call_id for call in calls if call.type == "function_call"}) == 2
    assert len({item.id for item in answer.output}) == 4
    assert answer.usage is not None
    assert 5 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens / 2
    type(answer).model_validate(answer.to_dict(), strict=False)


def test_sdk_stream(sdk: openai.OpenAI) -> None:
    tools: Any = [WEATHER]
    whole = sdk.responses.create(model="scripted", input="Weather in Paris?", tools=tools)
    with sdk.responses.stream(model="scripted", input="Weather in Paris?", tools=tools) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    calls = [item for item in final.output if item.type == "function_call"]
    assert [call.parsed_arguments for call in calls] == [{"city": city} for city in CITIES]
    pieces = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert pieces[-1].snapshot == calls[-1].arguments
    assert "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == "I must look."


@pytest.mark.parametrize("fields", [
    {}, {"tools": []}, {"tool_choice": "none"}, {"parallel_tool_calls": False}, {"top_logprobs": 2},
    {"tools": [], "include": ["message.output_text.logprobs"]},
    {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}},
    *({"max_output_tokens": count} for count in range(1, 160, 5)),
])  # fmt: skip
def test_streamed_is_whole(thinker: ServerClient, fields: dict[str, Any]) -> None:
    fields = {"tools": [WEATHER, NOW], **fields}
    assert same(streamed(thinker, **fields)) == same(whole(thinker, **fields))


@pytest.mark.parametrize(("fields", "kinds"), [
    ({}, ALL), ({"parallel_tool_calls": False}, ALL[:3]), ({"tool_choice": "none"}, ALL[:2]), ({"tools": []}, ALL[:2]),
    ({"max_output_tokens": 3}, ALL[:1]), ({"max_output_tokens": 40}, ALL[:2]), ({"tool_choice": "auto"}, ALL),
])  # fmt: skip
def test_kinds_and_states(thinker: ServerClient, fields: dict[str, Any], kinds: list[str]) -> None:
    answer = whole(thinker, **{"tools": [WEATHER], **fields})
    assert [item["type"] for item in answer["output"]] == kinds
    *before, last = (item["status"] for item in answer["output"])
    assert set(before) <= {"completed"}
    assert last == answer["status"] == ("incomplete" if "max_output_tokens" in fields else "completed")


def test_logprobs_are_those_of_the_text(thinker: ServerClient) -> None:
    item = whole(thinker, tools=[WEATHER], top_logprobs=1)["output"][1]
    (part,) = item["content"]
    written = b"".join(bytes(row["bytes"]) for row in part["logprobs"]).decode()
    assert part["text"] in written
    assert "look" not in written
    assert "Paris" not in written


def test_request_is_told_back(thinker: ServerClient) -> None:
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    answer = whole(thinker, tools=[WEATHER, NOW], tool_choice="none", parallel_tool_calls=False,
                   text={"format": schema, "verbosity": "low"}, truncation="auto", store=False)  # fmt: skip
    none = {"description": None, "parameters": None, "strict": False}
    assert answer["tools"] == [WEATHER, {**NOW, **none}]
    assert (answer["tool_choice"], answer["parallel_tool_calls"]) == ("none", False)
    assert answer["text"] == {"format": schema, "verbosity": "low"}
    assert (answer["truncation"], answer["store"]) == ("auto", False)
    choice = {"type": "function", "name": "now"}
    assert whole(thinker, tools=[NOW], tool_choice=choice)["tool_choice"] == choice


@pytest.mark.parametrize(("fields", "reply", "calls"), [
    ({"tool_choice": "required"}, '[{"name": "now", "parameters": {}}, {"name": "now", "parameters": {}}]',
     [("now", {}), ("now", {})]),
    ({"tool_choice": "required", "parallel_tool_calls": False}, '[{"name": "now", "parameters": {}}]', [("now", {})]),
    ({"tool_choice": {"type": "function", "name": "get_weather"}}, '{"city": "Rome"}',
     [("get_weather", {"city": "Rome"})]),
    ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}},
     '[{"name": "now", "parameters": {}}]', [("now", {})]),
])  # fmt: skip
def test_forced_calls(
    start_server: Any, sent: Callable[[Any], list[Any]], templates: dict[str, str], fields: Any, reply: str, calls: Any
) -> None:
    fields = {"tools": [WEATHER, NOW], **fields}
    with start_server(chat_template=templates["thoughts"], reply=reply) as client:
        seen = sent(client)
        answer = whole(client, **fields)
        assert [(item["name"], json.loads(item["arguments"])) for item in answer["output"]] == calls
        assert same(streamed(client, **fields)) == same(answer)
    for _, params in seen:
        assert params.grammar is not None
        assert ("maxItems" in params.grammar.text) == ("parallel_tool_calls" in fields)
        assert ("now" in params.grammar.text) == (calls[0][0] == "now")


class City(pydantic.BaseModel):
    """A form for an answer."""

    city: str


def test_forms(start_server: Any, sent: Callable[[Any], list[Any]], templates: dict[str, str]) -> None:
    reply = '{"city": "Rome"}'
    with start_server(chat_template=templates["thoughts"], reply=reply) as client:
        seen = sent(client)
        with client.openai_sdk() as sdk:
            assert sdk.responses.parse(model="scripted", input="x", text_format=City).output_parsed == City(city="Rome")
            with sdk.responses.stream(model="scripted", input="x", text_format=City) as stream:
                assert stream.get_final_response().output_parsed == City(city="Rome")
        assert whole(client, text={"format": {"type": "json_object"}})["output"][0]["content"][0]["text"] == reply
    assert [("city" in params.grammar.text) for _, params in seen] == [True, True, False]


def prompt(client: ServerClient, sent: Callable[[Any], list[Any]], **fields: Any) -> str:
    seen = sent(client)
    whole(client, max_output_tokens=1, **fields)
    return client.text_of(seen[-1][0])


WRITTEN = '<tool_call>{"name": "get_weather", "arguments": {"city": "%s"}}</tool_call>'


@pytest.mark.parametrize("thought", [
    {"summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}], "encrypted_content": None},
    {"summary": [{"type": "summary_text", "text": "Hm."}], "id": "rs_1"},
])  # fmt: skip
def test_items_go_back(thinker: ServerClient, sent: Callable[[Any], list[Any]], thought: dict[str, Any]) -> None:
    call = {"type": "function_call", "name": "get_weather", "status": "completed"}
    text = prompt(thinker, sent, instructions="Be brief.", input=[
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", **thought},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {**call, "call_id": "a", "arguments": '{"city": "Paris"}'},
        {**call, "call_id": "b", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "sun"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {**call, "call_id": "c", "arguments": '{"city": "Bonn"}'},
        {"type": "function_call_output", "call_id": "c", "output": "fog"},
    ])  # fmt: skip
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
        f"<|im_start|>assistant\n<think>Hm.</think>I look.{WRITTEN % 'Paris'}{WRITTEN % 'Rome'}<|im_end|>\n"
        "<|im_start|>tool get_weather\nrain<|im_end|>\n<|im_start|>tool get_weather\nsun<|im_end|>\n"
        f"<|im_start|>assistant\n{WRITTEN % 'Bonn'}<|im_end|>\n<|im_start|>tool get_weather\nfog<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_answer_can_be_sent_back(sdk: openai.OpenAI) -> None:
    tools: Any = [WEATHER]
    first = sdk.responses.create(model="scripted", input="Weather?", tools=tools, store=False)
    turns: list[Any] = [{"role": "user", "content": "Weather?"}, *first.output]
    for item in first.output:
        if item.type == "function_call":
            turns.append({"type": "function_call_output", "call_id": item.call_id, "output": "rain"})
    second = sdk.responses.create(model="scripted", input=turns, tools=tools, store=False)
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + 60


def test_tools_are_shown(thinker: ServerClient, sent: Callable[[Any], list[Any]]) -> None:
    shown = prompt(thinker, sent, tools=[WEATHER])
    function = {name: WEATHER[name] for name in ("name", "description", "parameters")}
    (line,) = (line for line in shown.splitlines() if "get_weather" in line)
    assert json.loads(line.rpartition("system")[2]) == {"type": "function", "function": function}
    assert "get_weather" not in prompt(thinker, sent, tools=[WEATHER], tool_choice="none")
    one = {"type": "allowed_tools", "tools": [{"type": "function", "name": "now"}]}
    assert "get_weather" not in prompt(thinker, sent, tools=[WEATHER, NOW], tool_choice=one)


def test_namespaces(thinker: ServerClient) -> None:
    group = {"type": "namespace", "name": "world", "description": "Outside.", "tools": [WEATHER]}
    answer = whole(thinker, tools=[NOW, group])
    assert answer["tools"][1]["tools"] == [WEATHER]
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    assert [(call["name"], call["namespace"]) for call in calls] == [("get_weather", "world")] * 2
    assert same(streamed(thinker, tools=[NOW, group])) == same(answer)
    more = {"input": [*calls, {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "rain"}]}
    assert post(thinker, tools=[group], **more).status_code == 200


def test_web_search_is_not_offered(thinker: ServerClient, sent: Callable[[Any], list[Any]]) -> None:
    search = {"type": "web_search", "external_web_access": False}
    answer = post(thinker, tools=[search, NOW])
    assert answer.headers["x-wllm-ignored"] == "tools.web_search"
    assert [tool["name"] for tool in answer.json()["tools"]] == ["now"]
    assert prompt(thinker, sent, tools=[search]) == prompt(thinker, sent)


@pytest.mark.parametrize(("fields", "param"), [
    ({"tools": [{"type": "file_search"}]}, "tools[0]"), ({"tools": [{"name": "f"}]}, "tools[0]"),
    ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0]"), ({"tools": [NOW, NOW]}, "tools"),
    ({"tools": [NOW, {"type": "namespace", "name": "n", "tools": [NOW]}]}, "tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{**NOW, "name": "a b"}]}]}, "tools[0].tools[0].name"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "x" * 129}]}, "tools[0].name"), ({"tools": [NOW] * 129}, "tools"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"tools": [NOW], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [NOW], "tool_choice": "required", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "name": "f", "call_id": "a", "arguments": {}}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]}]},
     "input[0].output"),
    ({"input": [{"type": "custom_tool_call", "call_id": "a", "name": "f", "input": "x"}]}, "input[0]"),
])  # fmt: skip
def test_refusals(thinker: ServerClient, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        answer = post(thinker, stream=stream, **fields)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param


def test_truncation_drops_the_oldest_turns(start_server: Any, sent: Callable[[Any], list[Any]]) -> None:
    turns = [
        one for number in range(12)
        for one in ({"role": "user", "content": f"Question {number}"}, {"role": "assistant", "content": "Yes."})
    ]  # fmt: skip
    turns.append({"role": "user", "content": "Last"})
    with start_server(max_model_len=256) as client:
        assert post(client, input=turns, max_output_tokens=16).json()["error"]["code"] == "context_length_exceeded"
        fields = {"input": turns, "instructions": "Be.", "truncation": "auto"}
        text = prompt(client, sent, **fields)
        assert text.startswith("<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nQuestion ")
        assert text.endswith("user\nLast<|im_end|>\n<|im_start|>assistant\n")
        kept = text.count("Question")
        assert 0 < kept < 12
        shorter = [*turns[(12 - kept - 1) * 2 :]]
        assert post(client, input=shorter, instructions="Be.", max_output_tokens=1).status_code == 400, "one more fits"
        assert prompt(client, sent, **{**fields, "input": turns[-3:]}).count("Question") == 1
        alone = post(client, input="word " * 300, truncation="auto")
        assert (alone.status_code, alone.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_what_codex_sends(thinker: ServerClient) -> None:
    """The fields of its requests, as its version 0.171 makes them."""

    def said(role: str, *texts: str) -> dict[str, Any]:
        parts = [{"type": "input_text", "text": text} for text in texts]
        return {"type": "message", "id": f"msg_{role}", "role": role, "content": parts}

    agents = {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [NOW]}
    answer = whole(thinker, **{
        "model": "scripted", "input": [said("developer", "You are an agent."), said("user", "Here.", "Hi")],
        "tools": [WEATHER, agents, {"type": "web_search", "external_web_access": False}], "tool_choice": "auto",
        "parallel_tool_calls": True, "reasoning": {"summary": "auto"}, "store": False, "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content"], "client_metadata": {"turn_id": "1"},
    })  # fmt: skip
    assert [item["type"] for item in answer["output"]] == ALL


@pytest.mark.parametrize("depth", [150, 250, 600, 940, 947, 955, 990, 5_000])
@pytest.mark.parametrize("stream", ["false", "true"])
@pytest.mark.parametrize("fields", [
    '"text": {"format": {"type": "text", "x": %s}}',
    '"tool_choice": "none", "tools": [{"type": "function", "name": "f", "parameters": %s}]',
])  # fmt: skip
def test_what_is_told_back_can_be_written(thinker: ServerClient, fields: str, stream: str, depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    raw = f'{{"input": "x", "max_output_tokens": 1, "stream": {stream}, {fields % nested}}}'
    answer = thinker.post("/v1/responses", content=raw.encode())
    assert answer.status_code == (200 if depth == 150 else 400)
    assert "server_error" not in answer.text
