"""/v1/messages with tools, thoughts and forms, through Anthropic's own SDK and byte by byte."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import pydantic
import pytest
from server_client import ServerClient

from wllm_api.testing import sse_events

USER: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object"}}
THINK: Any = {"type": "enabled", "budget_tokens": 2048}
CITIES = ["Paris", "Köln 🫠"]


@pytest.fixture
def sdk(thinker: ServerClient) -> Iterator[anthropic.Anthropic]:
    with thinker.anthropic_sdk() as sdk:
        yield sdk


def post(client: ServerClient, **fields: Any) -> httpx.Response:
    return client.post("/v1/messages", json={"max_tokens": 400, "messages": USER, **fields})


def whole(client: ServerClient, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = client.ask("/v1/messages", **{"max_tokens": 400, "messages": USER, **fields})
    return body


def streamed(client: ServerClient, **fields: Any) -> dict[str, Any]:
    """The stream put together as clients do it, with a check of the order of the events."""
    events: list[Any] = list(sse_events(post(client, stream=True, **fields).text.splitlines()))
    assert events.pop(0)["type"] == "message_start"
    assert events.pop()["type"] == "message_stop"
    end = events.pop()
    assert end["type"] == "message_delta"
    blocks: list[dict[str, Any]] = []
    is_open = False
    names = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
             "tool_use": ("input_json_delta", "partial_json")}  # fmt: skip
    for event in events:
        if event["type"] == "content_block_start":
            assert (is_open, event["index"]) == (False, len(blocks))
            is_open = True
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_stop":
            assert (is_open, event["index"]) == (True, len(blocks) - 1)
            is_open = False
        else:
            assert (is_open, event["index"], event["type"]) == (True, len(blocks) - 1, "content_block_delta")
            block, delta = blocks[-1], event["delta"]
            kind, name = names[block["type"]]
            assert delta.keys() == {"type", name}
            assert delta["type"] == kind
            block["json" if name == "partial_json" else name] += delta[name]
    assert not is_open
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = pydantic.TypeAdapter(Any).validate_json(text or "{}", experimental_allow_partial=True)
    return {"content": blocks, **end["delta"], "usage": end["usage"]["output_tokens"]}


def same(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what may differ from one request to the next."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in answer["content"]]
    usage = answer["usage"]
    kept = {"content": content, "usage": usage if isinstance(usage, int) else usage["output_tokens"]}
    return {**kept, **{name: answer[name] for name in ("stop_reason", "stop_sequence")}}


def calls_of(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]


def test_thought_text_and_calls(sdk: anthropic.Anthropic) -> None:
    answer = sdk.messages.create(model="scripted", max_tokens=400, messages=USER, tools=[WEATHER], thinking=THINK)
    thought, text, *calls = answer.content
    assert (thought.type, text.type, answer.stop_reason) == ("thinking", "text", "tool_use")
    assert (thought.thinking, thought.signature, text.text) == ("I must look.", "", "One moment.")
    assert [(call.type == "tool_use" and call.name, call.input) for call in calls] == [  # type: ignore[union-attr]
        ("get_weather", {"city": city}) for city in CITIES
    ]
    ids = {call.id for call in calls if call.type == "tool_use"}
    assert len(ids) == 2
    assert all(one.startswith("toolu_") for one in ids)


def test_sdk_stream(sdk: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "scripted", "max_tokens": 400, "messages": USER, "tools": [WEATHER]}
    made = sdk.messages.create(**fields, thinking=THINK)
    with sdk.messages.stream(**fields, thinking=THINK) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert same(final.to_dict()) == same(made.to_dict())
    kinds = {event.type for event in events}
    assert {"thinking", "text", "input_json", "content_block_stop", "message_stop"} <= kinds
    assert "".join(event.thinking for event in events if event.type == "thinking") == "I must look."


@pytest.mark.parametrize("fields", [
    {}, {"thinking": THINK}, {"thinking": {"type": "adaptive", "display": "omitted"}},
    {"tool_choice": {"type": "none"}}, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"stop_sequences": ["moment"]}, {"stop_sequences": ["Köln"], "thinking": THINK},
    *({"max_tokens": count, "thinking": THINK} for count in range(1, 160, 5)),
    *({"max_tokens": count} for count in range(2, 160, 17)),
])  # fmt: skip
def test_streamed_is_whole(thinker: ServerClient, fields: dict[str, Any]) -> None:
    fields = {"tools": [WEATHER], **fields}
    assert same(streamed(thinker, **fields)) == same(whole(thinker, **fields))


@pytest.mark.parametrize(("fields", "kinds", "reason"), [
    ({}, ["text", "tool_use", "tool_use"], "tool_use"),
    ({"thinking": {"type": "disabled"}}, ["text", "tool_use", "tool_use"], "tool_use"),
    ({"thinking": {"type": "adaptive"}}, ["thinking", "text", "tool_use", "tool_use"], "tool_use"),
    ({"thinking": {"type": "adaptive", "display": "omitted"}}, ["text", "tool_use", "tool_use"], "tool_use"),
    ({"thinking": THINK, "max_tokens": 3}, ["thinking"], "max_tokens"), ({"max_tokens": 3}, ["text"], "max_tokens"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, ["text", "tool_use"], "tool_use"),
    ({"tool_choice": {"type": "none"}}, ["text"], "end_turn"), ({"tools": []}, ["text"], "end_turn"),
    ({"stop_sequences": ["One"]}, ["text"], "stop_sequence"),
])  # fmt: skip
def test_blocks(thinker: ServerClient, fields: dict[str, Any], kinds: list[str], reason: str) -> None:
    answer = whole(thinker, **{"tools": [WEATHER], **fields})
    assert ([block["type"] for block in answer["content"]], answer["stop_reason"]) == (kinds, reason)


def test_cut_call_is_what_came(thinker: ServerClient) -> None:
    seen = []
    for count in range(40, 110):
        answer = whole(thinker, tools=[WEATHER], max_tokens=count)
        assert answer["stop_reason"] == "max_tokens"
        seen += [block["input"] for block in answer["content"] if block["type"] == "tool_use"]
    assert {} in seen
    assert all(one in ({}, {"city": "Paris"}) for one in seen)


def test_arguments_that_are_no_json_come_as_text(start_server: Any, templates: dict[str, str]) -> None:
    reply = '<tool_call>{"name": "now", "arguments": [1, 2]}</tool_call>'
    with start_server(chat_template=templates["tools"], reply=reply) as client:
        assert calls_of(whole(client, tools=[NOW])) == [("now", {"INVALID_JSON": "[1, 2]"})]


@pytest.mark.parametrize(("choice", "reply", "calls"), [
    ({"type": "any"}, '[{"name": "now", "parameters": {}}, {"name": "get_weather", "parameters": {"city": "Rome"}}]',
     [("now", {}), ("get_weather", {"city": "Rome"})]),
    ({"type": "any", "disable_parallel_tool_use": True}, '[{"name": "now", "parameters": {}}]', [("now", {})]),
    ({"type": "tool", "name": "get_weather"}, '{"city": "Rome"}', [("get_weather", {"city": "Rome"})]),
])  # fmt: skip
def test_forced_calls(
    start_server: Any, sent: Callable[[Any], list[Any]], templates: dict[str, str], choice: Any, reply: str, calls: Any
) -> None:
    with start_server(chat_template=templates["thoughts"], reply=reply) as client:
        seen = sent(client)
        answer = whole(client, tools=[WEATHER, NOW], tool_choice=choice)
        assert (calls_of(answer), answer["stop_reason"]) == (calls, "tool_use")
        assert same(streamed(client, tools=[WEATHER, NOW], tool_choice=choice)) == same(answer)
    for _, params in seen:
        assert params.grammar is not None
        assert "get_weather" in params.grammar.text or choice["type"] == "tool"
        assert ("maxItems" in params.grammar.text) == ("disable_parallel_tool_use" in choice)


Prompt = Callable[..., str]


@pytest.fixture
def prompt(thinker: ServerClient, sent: Callable[[Any], list[Any]]) -> Prompt:
    """A function: the prompt that the engine gets for a conversation, which is as long as it is counted."""
    seen = sent(thinker)

    def prompt_of(**fields: Any) -> str:
        whole(thinker, max_tokens=1, **fields)
        token_ids, _ = seen[-1]
        counted = thinker.ask("/v1/messages/count_tokens", **{"messages": USER, **fields})
        assert counted == {"input_tokens": len(token_ids)}
        return thinker.text_of(token_ids)

    return prompt_of


def test_tools_are_shown_and_counted(prompt: Prompt) -> None:
    plain, shown = prompt(), prompt(tools=[WEATHER])
    assert "get_weather" not in plain
    function = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER["input_schema"]}
    (line,) = (line for line in shown.splitlines() if "get_weather" in line)
    assert json.loads(line.rpartition("system")[2]) == {"type": "function", "function": function}
    assert prompt(tools=[WEATHER], tool_choice={"type": "none"}) == plain


def test_results_go_back(prompt: Prompt) -> None:
    call = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Paris"}}
    messages = [
        *USER,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "text", "text": "I look."}, call,
            {**call, "id": "b", "input": {"city": "Rome"}, "cache_control": {"type": "ephemeral"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "s"}], "is_error": True},
            {"type": "text", "text": "And now?"},
        ]},
    ]  # fmt: skip
    text = prompt(messages=messages, tools=[WEATHER])
    written = '<tool_call>{"name": "get_weather", "arguments": {"city": "%s"}}</tool_call>'
    assert text.endswith(
        "<|im_start|>user\nWeather in Paris?<|im_end|>\n"
        f"<|im_start|>assistant\n<think>Hm.</think>I look.{written % 'Paris'}{written % 'Rome'}<|im_end|>\n"
        "<|im_start|>tool get_weather\nrain<|im_end|>\n<|im_start|>tool get_weather\nError: s<|im_end|>\n"
        "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_answer_can_be_sent_back(sdk: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "scripted", "max_tokens": 400, "tools": [WEATHER], "thinking": THINK}
    first = sdk.messages.create(messages=USER, **fields)
    results: Any = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
        for block in first.content
        if block.type == "tool_use"
    ]
    turns: Any = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    assert sdk.messages.create(messages=turns, **fields).usage.input_tokens > first.usage.input_tokens
    counted = sdk.messages.count_tokens(model="scripted", messages=turns, tools=[WEATHER], thinking=THINK)
    assert counted.input_tokens > first.usage.input_tokens


class City(pydantic.BaseModel):
    """A form for an answer."""

    city: str


def test_form(start_server: Any, sent: Callable[[Any], list[Any]], templates: dict[str, str]) -> None:
    with (
        start_server(chat_template=templates["thoughts"], reply='{"city": "Rome"}') as client,
        client.anthropic_sdk() as sdk,
    ):
        seen = sent(client)
        made = sdk.messages.parse(model="scripted", max_tokens=99, messages=USER, output_format=City)
        assert made.parsed_output == City(city="Rome")
        schema = {"type": "json_schema", "schema": City.model_json_schema()}
        assert whole(client, output_config={"format": schema})["content"][0]["text"] == '{"city": "Rome"}'
    assert all("city" in params.grammar.text for _, params in seen)


@pytest.mark.parametrize(("fields", "words"), [
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'tools[0].type': is 'web_search_20250305'"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"), ({"tools": [{**NOW, "name": "f g"}]}, "name"),
    ({"tools": [{**NOW, "defer_loading": True}]}, "'defer_loading'"),
    ({"tools": [{**NOW, "input_examples": [{}]}]}, "'input_examples'"),
    ({"tools": [{**NOW, "allowed_callers": ["code_execution_20250825"]}]}, "'allowed_callers'"),
    ({"tools": [NOW], "tool_choice": {"type": "tool"}}, "needs the 'name'"),
    ({"tools": [NOW], "tool_choice": {"type": "tool", "name": "x"}}, "not among the 'tools'"),
    ({"tools": [NOW], "tool_choice": {"type": "tool", "name": "x" * 9999}}, "tool_choice.name"),
    ({"tools": [NOW], "tool_choice": {"type": "any", "name": "now"}}, "has no 'name'"),
    ({"tools": [NOW], "tool_choice": {"type": "required"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "'tools' is empty"),
    ({"tools": [NOW], "tool_choice": {"type": "any"}, "output_config": {"format": {"type": "json_schema",
      "schema": {}}}}, "both ask for a form"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
    ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": 2}]}}, "edits[0].keep"),
    ({"context_management": True}, "context_management"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
     "cannot hold a block of the type 'tool_use'"),
    ({"messages": [*USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]},
     "the last message calls a tool"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "image", "source": {}}]}]}]}, "'image'"),
    ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, *USER]},
     "'redacted_thinking'"),
])  # fmt: skip
def test_refusals(thinker: ServerClient, fields: dict[str, Any], words: str) -> None:
    for stream in (False, True):
        answer = post(thinker, stream=stream, **fields)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("fields", [
    {"tools": [{**NOW, "type": "custom", "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True,
                "allowed_callers": ["direct"], "defer_loading": False, "input_examples": None, "strict": True}]},
    {"tools": [{**NOW, "name": "n" * 128}], "tool_choice": {"type": "tool", "name": "n" * 128}},
    {"tools": None, "tool_choice": None, "thinking": None, "output_config": None},
    {"output_config": {"format": None, "effort": None}, "tool_choice": {"type": "none"}},
])  # fmt: skip
def test_harmless_fields_pass(thinker: ServerClient, fields: dict[str, Any]) -> None:
    assert "x-wllm-ignored" not in post(thinker, max_tokens=2, **fields).raise_for_status().headers


def test_tool_runner(start_server: Any, sent: Callable[[Any], list[Any]], templates: dict[str, str]) -> None:
    """It asks for a conversation that the server keeps, is refused in words that it knows, and sends all of it."""
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Say what the weather is.

        Args:
            city: Where.
        """
        asked.append(city)
        return "It rains."

    reply = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    with start_server(chat_template=templates["tools"], reply=reply) as client, client.anthropic_sdk() as sdk:
        seen = sent(client)
        runner = sdk.beta.messages.tool_runner(
            model="scripted", max_tokens=99, messages=USER, tools=[get_weather], max_iterations=2
        )
        answers = list(runner)
        last = client.text_of(seen[-1][0])
    assert [answer.stop_reason for answer in answers] == ["tool_use", "tool_use"]
    assert asked[0] == "Paris"
    assert "Weather in Paris?" in last and "Say what the weather is." in last and "It rains." in last


def test_what_claude_code_sends(thinker: ServerClient) -> None:
    """The fields of its requests, as its version 2.1 makes them."""
    cached = {"cache_control": {"type": "ephemeral"}}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "required": ["path"],
        "properties": {"path": {"type": "string"}, "more": {"type": "object", "propertyNames": {"type": "string"},
                                                             "additionalProperties": {}}},
    }  # fmt: skip
    answer = thinker.post("/v1/messages?beta=true", headers={"anthropic-beta": "context-management-2025-06-27"}, json={
        "model": "scripted", "max_tokens": 400, "stream": True,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "So."}, {"type": "text", "text": "Hi", **cached}]},
            {"role": "system", "content": "There are agents."},
        ],
        "system": [{"type": "text", "text": "You help."}, {"type": "text", "text": "Be brief.", **cached}],
        "tools": [WEATHER, {"name": "Read", "description": "Read a file", "input_schema": schema}],
        "metadata": {"user_id": "me"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    })  # fmt: skip
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-wllm-ignored"] == "tools[1].input_schema", "this schema cannot be held to"
    assert '"stop_reason":"tool_use"' in answer.text
