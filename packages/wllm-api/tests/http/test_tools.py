"""Tools and reasoning over HTTP: what is offered to the model, what comes back, whole and streamed."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_client import ServerClient

from wllm_api.testing import sse_data

USER = [{"role": "user", "content": "Weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Größe <b>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
NOW = {"type": "function", "function": {"name": "now", "description": None}}
NAMED = {"type": "function", "function": {"name": "now"}}
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson(ensure_ascii=False) }}\n{% endfor %}"
    "<tool_call></tool_call><|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# </think> #}"
)
CALLS = "".join(
    f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>\n'
    for city in ("Paris", "Rome")
)
REPLY = f"I must look.\n</think>\n\nOne moment.\n{CALLS}"


@pytest.fixture(scope="module")
def caller(start_server: Any) -> Iterator[ServerClient]:
    with start_server(chat_template=TEMPLATE, reply=REPLY) as client:
        yield client


def post(client: ServerClient, **fields: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": USER, **fields})


def whole(client: ServerClient, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = client.ask("/v1/chat/completions", **{"messages": USER, **fields})["choices"][0]
    return choice


def chunks(client: ServerClient, **fields: Any) -> Iterator[dict[str, Any]]:
    """The choices of a stream."""
    events: Iterator[Any] = sse_data(post(client, stream=True, **fields).text.splitlines())
    for chunk in events:
        if chunk is not None:
            (choice,) = chunk["choices"]
            yield choice


def streamed(client: ServerClient, **fields: Any) -> dict[str, Any]:
    """The stream's choice put together as clients do it, with a check of every delta."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    calls: list[dict[str, Any]] = []
    reasons = []
    for choice in chunks(client, **fields):
        reasons.append(choice["finish_reason"])
        delta = choice["delta"]
        for name in ("content", "reasoning", "reasoning_content"):
            if name in delta:
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", []):
            assert isinstance(call["function"]["arguments"], str)
            if call["index"] == len(calls):
                assert call["id"] and call["id"] not in [one["id"] for one in calls]
                assert call["type"] == "function"
                calls.append({"id": call["id"], "type": "function", "function": {**call["function"]}})
            else:
                assert call["index"] == len(calls) - 1
                assert "id" not in call
                assert "name" not in call["function"]
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    return {"message": message, "finish_reason": reasons[-1]}


def same(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice without what may differ from one request to the next."""
    message = {**choice["message"]}
    if "tool_calls" in message:
        message["tool_calls"] = [call["function"] for call in message["tool_calls"]]
    return {"message": message, "finish_reason": choice["finish_reason"]}


def test_two_calls(caller: ServerClient) -> None:
    """R17."""
    choice = whole(caller, tools=[WEATHER])
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "One moment."
    assert message["reasoning"] == message["reasoning_content"] == "I must look."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather"] * 2
    assert [json.loads(call["function"]["arguments"])["city"] for call in message["tool_calls"]] == ["Paris", "Rome"]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert message["tool_calls"][0].keys() == {"id", "type", "function"}


@pytest.mark.parametrize("fields", [
    {}, {"parallel_tool_calls": False}, {"include_reasoning": False}, {"tool_choice": "none"}, {"tool_choice": "auto"},
    *({"max_tokens": count} for count in range(1, 200, 7)),
])  # fmt: skip
def test_streamed_is_whole(caller: ServerClient, fields: dict[str, Any]) -> None:
    """R18."""
    fields = {"tools": [WEATHER], **fields}
    assert same(streamed(caller, **fields)) == same(whole(caller, **fields))


def test_thoughts_are_counted(caller: ServerClient) -> None:
    def thought(client: ServerClient, **fields: Any) -> int:
        usage = post(client, **fields).raise_for_status().json()["usage"]
        assert usage["completion_tokens"] > usage["completion_tokens_details"]["reasoning_tokens"]
        count: int = usage["completion_tokens_details"]["reasoning_tokens"]
        return count

    tokens = caller.post("/tokenize", json={"prompt": "I must look."}).json()["count"]
    assert thought(caller) == thought(caller, include_reasoning=False) == thought(caller, tools=[WEATHER]) == tokens
    assert thought(caller, n=3) == 3 * tokens
    assert thought(caller, response_format={"type": "json_object"}) == 0


def test_one_call_only(caller: ServerClient) -> None:
    """R17."""
    (call,) = whole(caller, tools=[WEATHER], parallel_tool_calls=False)["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def test_cut_call_is_a_call(caller: ServerClient) -> None:
    """R18: from its name on; before that nothing of it is shown."""
    seen = set()
    for count in range(60, 150):
        choice = whole(caller, tools=[WEATHER], max_tokens=count)
        assert "tool_call>" not in (choice["message"]["content"] or "")
        assert choice["finish_reason"] == "length"
        seen.add(len(choice["message"].get("tool_calls", [])))
    assert {0, 1} <= seen


def test_reasoning_can_be_left_out(caller: ServerClient) -> None:
    message = whole(caller, tools=[WEATHER], include_reasoning=False)["message"]
    assert message.keys() == {"role", "content", "refusal", "tool_calls"}


def test_without_tools_calls_are_text(caller: ServerClient) -> None:
    choice = whole(caller)
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == f"One moment.\n{CALLS}"
    assert "tool_calls" not in choice["message"]


def test_tools_are_shown(caller: ServerClient) -> None:
    """R26."""
    prompt = caller.prompt_of(messages=USER, tools=[WEATHER, NOW])
    assert json.dumps(WEATHER, ensure_ascii=False) in prompt
    assert '{"type": "function", "function": {"name": "now"}}' in prompt


def test_choice_decides_what_is_shown(caller: ServerClient) -> None:
    def tokens(**fields: Any) -> int:
        count: int = post(caller, max_tokens=1, **fields).raise_for_status().json()["usage"]["prompt_tokens"]
        return count

    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    both = [WEATHER, NOW]
    assert tokens(tools=both, tool_choice=allowed) == tokens(tools=[NOW])
    assert tokens(tools=both) > tokens(tools=[NOW]) > tokens() == tokens(tools=both, tool_choice="none")


@pytest.mark.parametrize("fields", [
    {"tools": None, "tool_choice": None, "parallel_tool_calls": None}, {"tools": []},
    {"tools": [], "tool_choice": "none"}, {"tools": [NOW], "tool_choice": "auto"},
    {"tools": [{"type": "function", "function": {"name": "introspect", "description": None,
                                                 "parameters": {"properties": {}, "type": "object"}}}]},
])  # fmt: skip
def test_nulls_and_empty_lists(caller: ServerClient, fields: dict[str, Any]) -> None:
    """R20, R21."""
    assert post(caller, max_tokens=1, **fields).status_code == 200


@pytest.mark.parametrize(("fields", "param", "words"), [
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "empty"),
    ({"tool_choice": NAMED}, "tool_choice", "empty"),
    ({"tools": [NOW], "tool_choice": NAMED, "response_format": {"type": "json_object"}}, "response_format", "both"),
    ({"tools": [{"type": "function", "function": {"name": "now", "parameters": {"if": {}}}}], "tool_choice": NAMED},
     "tool_choice", "if"),
    ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice", "'now'"),
    ({"tools": [NOW], "tool_choice": "always"}, "tool_choice", "always"),
    ({"tools": [NOW], "tool_choice": {"type": "custom"}}, "tool_choice", "custom"),
    ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice", "function"),
    ({"tools": [NOW], "tool_choice": 3}, "tool_choice", ""),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "custom"),
    ({"tools": [{"type": "function"}]}, "tools", "function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]}, "tools", "parameters"),
    ({"tools": [NOW] * 129}, "tools", "128"),
    ({"tools": "x"}, "tools", ""),
    ({"tools": [NOW], "parallel_tool_calls": "yes"}, "parallel_tool_calls", ""),
])  # fmt: skip
def test_refusals(caller: ServerClient, fields: dict[str, Any], param: str, words: str) -> None:
    answer = post(caller, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"] or "").startswith(param)
    assert words in error["message"]


FLAT = {"type": "function", "name": "now"}


@pytest.mark.parametrize(("path", "fields", "param"), [
    ("/v1/chat/completions", {"messages": USER, "tools": [NOW, WEATHER, NOW]}, "tools"),
    ("/v1/chat/completions", {"messages": USER, "functions": [{"name": "now"}, {"name": "now"}]}, "functions"),
    ("/v1/responses", {"input": "Hi", "tools": [FLAT, FLAT]}, "tools"),
    ("/v1/responses", {"input": "Hi", "tools": [FLAT, {"type": "namespace", "name": "n", "tools": [FLAT]}]}, "tools"),
    ("/v1/messages", {"messages": USER, "max_tokens": 9, "tools": [{"name": "now", "input_schema": {}}] * 2}, "tools"),
    ("/v1/messages/count_tokens", {"messages": USER, "tools": [{"name": "now", "input_schema": {}}] * 2}, "tools"),
    ("/api/chat", {"model": "scripted", "messages": USER, "tools": [NOW, NOW]}, "tools"),
    ("/tokenize", {"messages": USER, "tools": [NOW, NOW]}, "tools"),
])  # fmt: skip
@pytest.mark.parametrize("choice", [None, "none"])
def test_two_tools_of_one_name_are_refused(
    caller: ServerClient, path: str, fields: dict[str, Any], param: str, choice: str | None
) -> None:
    """Not even where no call is allowed: which of them the model is shown would be a guess."""
    wanted = {"type": choice} if choice and path.startswith("/v1/messages") else choice
    answer = caller.post(path, json={**fields, "tool_choice": wanted})
    assert answer.status_code == 400, answer.text
    assert f"'{param}'" in answer.text and "'now'" in answer.text and "two of them" in answer.text
    alone = {name: value[:1] if name == param else value for name, value in fields.items()}
    assert caller.post(path, json=alone).status_code == 200


def test_history_reaches_a_template_with_tools(caller: ServerClient) -> None:
    """R19."""
    call = {"id": "0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Boston"}'}}
    history = [
        *USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "0", "content": "22 C"},
    ]
    assert post(caller, messages=history, tools=[WEATHER], max_tokens=1).status_code == 200
    prompt = caller.prompt_of(messages=history)
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Boston"}}</tool_call>' in prompt
    assert "22 C" in prompt


@pytest.mark.parametrize("template", ["{{ tools }}", "<｜tool▁call▁begin｜>{{ messages }}"])
def test_model_whose_calls_are_not_known(start_server: Any, template: str) -> None:
    with start_server(chat_template=template) as client:
        answer = post(client, tools=[NOW])
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tools"
        assert "--tool-parser" in answer.json()["error"]["message"]
        assert post(client, tools=[NOW], tool_choice="none", max_tokens=1).status_code == 200


INTROSPECT = {"name": "introspect", "description": None, "parameters": {"properties": {}, "type": "object"}}


def test_model_whose_template_shows_no_tools_is_told_in_words(start_server: Any) -> None:
    """R20: any model takes tools, and null is the same as missing."""
    with start_server(reply=REPLY.partition("</think>")[2]) as client:
        missing = {name: value for name, value in INTROSPECT.items() if value is not None}
        null, plain = ([{"type": "function", "function": function}, WEATHER] for function in (INTROSPECT, missing))
        system = [{"role": "system", "content": "Be brief."}, *USER]
        for messages, lead in ((USER, ""), (system, "Be brief.\n\n")):
            prompt = client.prompt_of(messages=messages, tools=null)
            assert prompt == client.prompt_of(messages=messages, tools=plain)
            assert prompt.startswith(f"<|im_start|>system\n{lead}You can call")
            assert json.dumps(WEATHER, ensure_ascii=False) in prompt and prompt.count("<|im_start|>system") == 1
        choice = whole(client, tools=null, tool_choice="auto")
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"] * 2
        assert same(streamed(client, tools=null)) == same(choice)
        assert whole(client, tools=null, tool_choice="none", max_tokens=4)["finish_reason"] == "length"


def test_tools_in_words_reach_a_template_without_a_system_message(start_server: Any) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system messages.') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    with start_server(chat_template=template) as client:
        prompt = client.prompt_of(messages=USER, tools=[NOW])
        assert prompt.startswith("[user]You can call") and prompt.endswith("Weather in Paris?")
        answer = post(client, messages=[{"role": "system", "content": "Be brief."}, *USER], tools=[NOW])
        assert answer.status_code == 400 and "No system messages." in answer.json()["error"]["message"]


def test_logprobs_cover_every_token(caller: ServerClient) -> None:
    """Rows go by tokens, wherever their text goes."""
    rows = [
        row["token"]
        for choice in chunks(caller, tools=[WEATHER], logprobs=True)
        for row in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert "".join(rows) == REPLY


def test_sdk_puts_the_stream_together(caller: ServerClient) -> None:
    with (
        caller.openai_sdk() as sdk,
        sdk.chat.completions.stream(model="scripted", messages=USER, tools=[WEATHER]) as stream,  # type: ignore[arg-type, list-item]
    ):
        message = stream.get_final_completion().choices[0].message
    assert message.content == "One moment."
    assert message.tool_calls is not None
    cities = [json.loads(call.function.arguments)["city"] for call in message.tool_calls]
    assert cities == ["Paris", "Rome"]


FORCED = '{"name": "get_weather", "parameters": {"city": "Paris"}}'


@pytest.mark.parametrize(("reply", "choice", "names", "reason"), [
    (f" [{FORCED}, {FORCED}]", "required", ["get_weather"] * 2, "tool_calls"),
    (f"[{FORCED}]", {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
     ["get_weather"], "tool_calls"),
    ('{"city": "Paris"}', {"type": "function", "function": {"name": "get_weather"}}, ["get_weather"], "stop"),
])  # fmt: skip
def test_forced_calls(start_server: Any, reply: str, choice: object, names: list[str], reason: str) -> None:
    """R18: whatever the model's family is."""
    with start_server(reply=reply) as client:
        fields = {"tools": [WEATHER, NOW], "tool_choice": choice}
        answer = whole(client, **fields)
        assert answer["finish_reason"] == reason
        assert answer["message"]["content"] is None
        calls = [call["function"] for call in answer["message"]["tool_calls"]]
        assert [call["name"] for call in calls] == names
        assert all(json.loads(call["arguments"]) == {"city": "Paris"} for call in calls)
        for count in (*range(1, 70, 5), 200):
            cut = whole(client, **fields, max_tokens=count)
            assert same(streamed(client, **fields, max_tokens=count)) == same(cut)
            assert not cut["message"]["content"]


def test_form_goes_before_thought(start_server: Any) -> None:
    """A form is the form of the whole answer, so nothing of it is a thought that the prompt has begun."""
    with start_server(chat_template=TEMPLATE, reply='{"a": 1}\n') as client:
        message = whole(client, response_format={"type": "json_object"})["message"]
        assert message == {"role": "assistant", "content": '{"a": 1}\n', "refusal": None}
        assert same(streamed(client, response_format={"type": "json_object"}))["message"] == message
