"""/v1/messages with Anthropic's own SDK, and byte by byte where the SDK would hide something."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam, TextBlock
from server_client import ALPHABET, ServerClient

from wllm_api.settings import Access, Limits
from wllm_api.testing import sse_events

USER: list[MessageParam] = [{"role": "user", "content": "Say hi."}]


@pytest.fixture
def sdk(client: ServerClient) -> Iterator[anthropic.Anthropic]:
    with client.anthropic_sdk() as sdk:
        yield sdk


def post(client: ServerClient, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    body = {"max_tokens": 20, "messages": USER, **fields}
    return client.post(path, json={name: value for name, value in body.items() if value is not ...})


def refused(client: ServerClient, path: str = "/v1/messages", **fields: Any) -> str:
    answer = post(client, path, **fields)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    message: str = body["error"]["message"]
    return message


def events_of(client: ServerClient, **fields: Any) -> list[dict[str, Any]]:
    body = {"max_tokens": 400, "messages": USER, **fields, "stream": True}
    with client.stream("POST", "/v1/messages", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        return list(sse_events(answer.iter_lines()))


def prompt_of(client: ServerClient, **fields: Any) -> int:
    count: int = (
        post(client, "/v1/messages/count_tokens", max_tokens=..., **fields).raise_for_status().json()["input_tokens"]
    )
    return count


def tokens_of(client: ServerClient, messages: list[dict[str, str]], **fields: Any) -> int:
    """What the tokenizer route counts for the same conversation."""
    count: int = client.post("/tokenize", json={"messages": messages, **fields}).raise_for_status().json()["count"]
    return count


def test_message(sdk: anthropic.Anthropic) -> None:
    answer = sdk.messages.create(model="scripted", max_tokens=400, messages=USER, system="Be brief.")
    assert answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "scripted")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    (block,) = answer.content
    assert isinstance(block, TextBlock)
    assert block.text
    assert answer._request_id


def test_shape(client: ServerClient) -> None:
    answer = post(client).json()
    assert answer.keys() == {"id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"}
    assert answer["usage"].keys() == {
        "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
        "output_tokens_details",
    }  # fmt: skip


@pytest.mark.parametrize(("fields", "reason", "sequence"), [
    ({}, "end_turn", None), ({"max_tokens": 3}, "max_tokens", None),
    ({"stop_sequences": ["nowhere", "ABC"]}, "stop_sequence", "ABC"), ({"stop_sequences": []}, "end_turn", None),
    ({"stop_sequences": ["Here"]}, "stop_sequence", "Here"),
    ({"max_tokens": 1_000_000, "stop_sequences": ["🫠龜"]}, "stop_sequence", "🫠龜"),
])  # fmt: skip
def test_streamed_is_whole(alphabet: ServerClient, fields: dict[str, Any], reason: str, sequence: str | None) -> None:
    whole = post(alphabet, **{"max_tokens": 400, **fields}).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    text = whole["content"][0]["text"]
    assert ALPHABET.startswith(text)
    assert sequence is None or text == ALPHABET.partition(sequence)[0]
    start, block, *pieces, block_stop, delta, stop = events_of(alphabet, **fields)
    assert start["type"] == "message_start"
    head = start["message"]
    assert (head["content"], head["stop_reason"], head["stop_sequence"]) == ([], None, None)
    assert head.keys() == whole.keys()
    assert block == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert {piece["type"] for piece in pieces} <= {"content_block_delta"}
    assert all(piece["delta"].keys() == {"type", "text"} and piece["delta"]["text"] for piece in pieces)
    assert "".join(piece["delta"]["text"] for piece in pieces) == text
    assert block_stop == {"type": "content_block_stop", "index": 0}
    assert delta["type"] == "message_delta"
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert delta["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert total_input(delta["usage"]) == total_input(whole["usage"]) == total_input(head["usage"])
    assert stop == {"type": "message_stop"}


def total_input(usage: dict[str, int]) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


def test_sdk_stream(sdk: anthropic.Anthropic) -> None:
    greedy = {"temperature": 0}  # over the wire, though the SDK has no argument for it
    whole = sdk.messages.create(model="scripted", max_tokens=400, messages=USER, extra_body=greedy)
    with sdk.messages.stream(model="scripted", max_tokens=400, messages=USER, extra_body=greedy) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert isinstance(whole.content[0], TextBlock)
    assert isinstance(final.content[0], TextBlock)
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_cached_tokens_are_no_input_tokens(client: ServerClient) -> None:
    messages = [{"role": "user", "content": "A question for this API alone, long enough to fill some blocks of cache."}]
    first, second = (post(client, messages=messages).json()["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] < second["cache_read_input_tokens"]
    assert second["cache_read_input_tokens"] >= 16
    assert total_input(first) == total_input(second) == prompt_of(client, messages=messages)


SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(("fields", "messages"), [
    ({"messages": [HI]}, [HI]),
    ({"messages": [HI], "system": "Be brief."}, [SYSTEM, HI]),
    ({"messages": [HI], "system": ""}, [HI]), ({"messages": [HI], "system": []}, [HI]),
    ({"messages": [HI], "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
     [SYSTEM, HI]),
    ({"messages": [HI], "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
     [{"role": "system", "content": "Be\nbrief."}, HI]),
    ({"messages": [SYSTEM, HI]}, [SYSTEM, HI]),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, [HI]),
    ({"messages": [HI, {"role": "user", "content": "there"}]}, [{"role": "user", "content": "Hi\nthere"}]),
    ({"messages": [HI, {"role": "assistant", "content": "Yes?"}, HI]},
     [HI, {"role": "assistant", "content": "Yes?"}, HI]),
])  # fmt: skip
def test_conversations(client: ServerClient, fields: dict[str, Any], messages: list[dict[str, str]]) -> None:
    assert prompt_of(client, **fields) == tokens_of(client, messages)
    assert total_input(post(client, **fields).json()["usage"]) == tokens_of(client, messages)


def test_final_assistant_turn_is_continued(client: ServerClient) -> None:
    messages = [HI, {"role": "assistant", "content": "The best answer is ("}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert prompt_of(client, messages=messages) == tokens_of(client, messages, **fields)
    assert not post(client, messages=messages).json()["content"][0]["text"].startswith("The best")


def test_models(sdk: anthropic.Anthropic) -> None:
    page = sdk.models.list()
    assert ([model.id for model in page], page.has_more) == (["scripted", "org/other-name"], False)
    assert (page.first_id, page.last_id) == ("scripted", "org/other-name")
    model = sdk.models.retrieve("org/other-name")
    assert (model.id, model.type, model.display_name) == ("org/other-name", "model", "org/other-name")
    assert (model.lifecycle, model.max_input_tokens) == ("active", 4096)
    assert model.created_at.year >= 2026
    with pytest.raises(anthropic.NotFoundError):
        sdk.models.retrieve("nope")


def test_sdk_counts_tokens(sdk: anthropic.Anthropic) -> None:
    count = sdk.messages.count_tokens(model="scripted", messages=USER, system="Be brief.").input_tokens
    assert count > sdk.messages.count_tokens(model="scripted", messages=USER).input_tokens > 0


@pytest.mark.parametrize(("fields", "words"), [
    ({"max_tokens": ...}, "'max_tokens' is required"), ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"messages": []}, "messages"), ({"messages": "Hi"}, "messages"), ({"messages": ...}, "'messages' is required"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "role"), ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": None}]}, "content"), ({"messages": [None]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "'messages[0].content[0]': must be a block"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "'messages[0].content[0].text' is required"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "content[0].tool_use_id' is required"),
    ({"system": 3}, "system"), ({"system": [{"type": "image"}]}, "'image'"),
    ({"temperature": 1.5}, "temperature"), ({"temperature": -1}, "temperature"), ({"top_p": 2}, "top_p"),
    ({"top_k": -1}, "top_k"), ({"stop_sequences": [""]}, "stop_sequences"), ({"stop_sequences": [3]}, "stop_sequences"),
    ({"stream": "yes"}, "stream"),
    ({"tool_choice": {"type": "any"}}, "'tool_choice'"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "on"}}, "thinking.type"), ({"thinking": True}, "thinking"),
    ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"), ({"container": "c"}, "container"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nope"}}}}, "output_config.format"),
    ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
    ({"output_config": 3}, "output_config"), ({"mcp_servers": [{}]}, "mcp_servers"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused(client: ServerClient, fields: dict[str, Any], words: str) -> None:
    assert words in refused(client, **fields)
    assert words in refused(client, **{"stream": True, **fields})


@pytest.mark.parametrize("fields", [
    {"metadata": {"user_id": "me"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}},
    {"thinking": {"type": "disabled"}, "tools": [], "tool_choice": {"type": "auto"}},
    {"system": None, "temperature": None, "top_p": None, "top_k": None, "stop_sequences": None, "stream": None},
    {"output_config": {"effort": "low"}}, {"temperature": 0}, {"top_k": 0}, {"top_k": 10**9},
])  # fmt: skip
def test_harmless_fields_pass(client: ServerClient, fields: dict[str, Any]) -> None:
    answer = post(client, **fields)
    assert answer.status_code == 200, answer.text
    assert "x-wllm-ignored" not in answer.headers


def test_unknown_fields_are_named(client: ServerClient) -> None:
    answer = post(client, zzz=1, messages=[{**HI, "mood": "good"}])
    assert answer.headers["x-wllm-ignored"] == "zzz, messages.mood"


def test_more_tokens_than_fit_end_with_the_context(start_server: Any) -> None:
    with start_server(reply="a" * 200, max_model_len=64) as client:
        answer = post(client, max_tokens=32_000).json()
        assert answer["stop_reason"] == "model_context_window_exceeded"
        assert total_input(answer["usage"]) + answer["usage"]["output_tokens"] == 64
        assert events_of(client, max_tokens=32_000)[-2]["delta"]["stop_reason"] == "model_context_window_exceeded"


def test_errors_have_their_classes(sdk: anthropic.Anthropic, client: ServerClient) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        sdk.messages.create(model="nope", max_tokens=5, messages=USER)
    assert isinstance(unknown.value.body, dict)
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        sdk.messages.create(model="scripted", max_tokens=0, messages=USER)


def test_loading(start_server: Any) -> None:
    with start_server(ready=False, load_s=2.0) as client:
        answer = post(client)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "api_error")
        with client.anthropic_sdk(max_retries=3) as sdk:
            assert sdk.messages.create(model="scripted", max_tokens=5, messages=USER).content


def test_keys(start_server: Any) -> None:
    with start_server(Access(api_keys=("first", "secönd"))) as client:
        for headers in ({"x-api-key": "first"}, {"Authorization": "Bearer first"}, {"x-api-key": "secönd".encode()},
                        {"x-api-key": "first", "Authorization": "Bearer wrong"},
                        {"x-api-key": "wrong", "Authorization": "Bearer first"}):  # fmt: skip
            assert (
                client.post("/v1/messages", json={"max_tokens": 1, "messages": USER}, headers=headers).status_code
                == 200
            )
        for headers in ({}, {"x-api-key": ""}, {"x-api-key": "wrong"}, {"x-api-key": "first2"}):
            answer = client.post("/v1/messages", json={}, headers=headers)
            assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        with client.anthropic_sdk(api_key="first") as sdk:
            assert sdk.messages.create(model="scripted", max_tokens=1, messages=USER).content
        with client.anthropic_sdk(api_key="wrong") as sdk, pytest.raises(anthropic.AuthenticationError):
            sdk.messages.create(model="scripted", max_tokens=1, messages=USER)
        with client.anthropic_sdk(api_key=None, auth_token="first") as sdk:
            assert sdk.messages.create(model="scripted", max_tokens=1, messages=USER).content


def test_foreign_origin(client: ServerClient) -> None:
    answer = client.post("/v1/messages", json={}, headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


def test_pings_are_events(start_server: Any) -> None:
    with start_server(limits=Limits(ping_interval_s=0.1), step_s=2.6) as client:
        names = [event["type"] for event in events_of(client, max_tokens=1)]
        with (
            client.anthropic_sdk() as sdk,
            sdk.messages.stream(model="scripted", max_tokens=1, messages=USER) as stream,
        ):
            assert stream.get_final_message().stop_reason == "max_tokens"
    assert names.count("ping") >= 2
    assert next(name for name in names if name != "ping") == "message_start"


def test_engine_that_dies_in_the_stream(start_server: Any) -> None:
    with start_server(step_s=0.01, reply="a" * 3000) as client, client.anthropic_sdk() as sdk:
        stream = sdk.messages.create(model="scripted", max_tokens=3000, messages=USER, stream=True)
        assert next(event for event in stream if event.type == "content_block_delta")
        os.kill(client.engine.pid, signal.SIGTERM)
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(stream)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "api_error"
    assert caught.value.body["request_id"]
