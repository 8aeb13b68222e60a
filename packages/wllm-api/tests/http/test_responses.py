"""/v1/responses with OpenAI's own SDK, and byte by byte where the SDK would hide something."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from server_client import ALPHABET, ServerClient

from wllm_api.testing import sse_events

HI = {"role": "user", "content": "Hi"}
BRIEF = {"role": "system", "content": "Be brief."}


@pytest.fixture
def sdk(client: ServerClient) -> Iterator[openai.OpenAI]:
    with client.openai_sdk() as sdk:
        yield sdk


def post(client: ServerClient, **fields: Any) -> httpx.Response:
    return client.post("/v1/responses", json={"input": "Say hi.", "temperature": 0, **fields})


def whole_of(client: ServerClient, **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = client.ask("/v1/responses", **{"input": "Say hi.", "temperature": 0, **fields})
    return body


def events_of(client: ServerClient, **fields: Any) -> list[dict[str, Any]]:
    body = {"input": "Say hi.", "temperature": 0, **fields, "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = list(sse_events(answer.iter_lines()))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["output"][0]["content"][0]["text"]
    return text


def lasting(response: dict[str, Any]) -> dict[str, Any]:
    """A response less what two equal requests may differ in."""
    response = json.loads(json.dumps(response))
    for name in ("id", "created_at", "completed_at"):
        del response[name]
    for item in response["output"]:
        del item["id"]
    del response["usage"]["input_tokens_details"]
    return response


def test_response(sdk: openai.OpenAI) -> None:
    answer = sdk.responses.create(model="scripted", input="Say hi.", instructions="Be brief.", metadata={"a": "b"})
    assert answer.id.startswith("resp_")
    assert (answer.object, answer.status, answer.model) == ("response", "completed", "scripted")
    assert answer.output_text
    assert (answer.error, answer.incomplete_details, answer.metadata) == (None, None, {"a": "b"})
    assert (answer.instructions, answer.tools, answer.temperature, answer.top_p) == ("Be brief.", [], 1.0, 1.0)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    type(answer).model_validate(answer.to_dict(), strict=False)


def test_sdk_stream(sdk: openai.OpenAI) -> None:
    whole = sdk.responses.create(model="scripted", input="Say hi.", temperature=0)
    with sdk.responses.stream(model="scripted", input="Say hi.", temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    assert final.usage is not None and whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("fields", [
    {}, {"max_output_tokens": 1}, {"max_output_tokens": 37}, {"top_logprobs": 2}, {"max_output_tokens": 40, "seed": 3},
    {"include": ["message.output_text.logprobs"]}, {"top_logprobs": 1, "max_output_tokens": 38},
    {"instructions": "Be."},
])  # fmt: skip
def test_streamed_is_whole(alphabet: ServerClient, fields: dict[str, Any]) -> None:
    whole = whole_of(alphabet, **fields)
    assert ALPHABET.startswith(text_of(whole))
    created, running, item, part, *deltas, text_done, part_done, item_done, end = events_of(alphabet, **fields)
    assert (created["type"], running["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == running["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert created["response"]["usage"] is None
    assert item["type"] == "response.output_item.added"
    assert (item["item"]["status"], item["item"]["content"]) == ("in_progress", [])
    assert part["type"] == "response.content_part.added"
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert {delta["type"] for delta in deltas} == {"response.output_text.delta"}
    made = whole["output"][0]["content"][0]
    assert "".join(delta["delta"] for delta in deltas) == made["text"] == text_done["text"]
    assert [row for delta in deltas for row in delta["logprobs"]] == made["logprobs"] == text_done["logprobs"]
    assert (part_done["type"], part_done["part"]) == ("response.content_part.done", made)
    assert (item_done["type"], item_done["item"]) == ("response.output_item.done", end["response"]["output"][0])
    assert {e["item_id"] for e in (part, *deltas, text_done, part_done)} == {item["item"]["id"]}
    assert end["type"] == f"response.{whole['status']}"
    assert lasting(end["response"]) == lasting(whole)
    assert created["response"].keys() == whole.keys()


@pytest.mark.parametrize(("fields", "num_top"), [
    ({}, None), ({"top_logprobs": 3}, 3), ({"include": ["message.output_text.logprobs"]}, 0),
    ({"include": ["reasoning.encrypted_content"]}, None),
])  # fmt: skip
def test_logprobs(client: ServerClient, fields: dict[str, Any], num_top: int | None) -> None:
    rows = whole_of(client, **fields)["output"][0]["content"][0]["logprobs"]
    assert bool(rows) == (num_top is not None)
    for row in rows:
        assert row.keys() == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(row["top_logprobs"]) == num_top


def test_cut_answer_is_incomplete(client: ServerClient) -> None:
    answer = whole_of(client, max_output_tokens=2)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["usage"]["output_tokens"] == 2


def test_input_tokens_are_counted(sdk: openai.OpenAI) -> None:
    fields: Any = {"model": "scripted", "input": "Hi", "instructions": "Be brief."}
    count = sdk.responses.input_tokens.count(**fields)
    made = sdk.responses.create(**fields)
    assert made.usage is not None
    assert (count.object, count.input_tokens) == ("response.input_tokens", made.usage.input_tokens)
    more = sdk.responses.input_tokens.count(model="scripted", input="And?", previous_response_id=made.id)
    assert more.input_tokens > count.input_tokens
    with pytest.raises(openai.BadRequestError):
        sdk.responses.input_tokens.count(model="scripted", input="And?", conversation="c")


def test_second_time_is_cached(client: ServerClient) -> None:
    text = "A question for responses alone, which nobody has asked before, long enough for some blocks."
    first, second = (whole_of(client, input=text)["usage"]["input_tokens_details"] for _ in range(2))
    assert first["cached_tokens"] < second["cached_tokens"]
    assert second["cached_tokens"] >= 16


@pytest.mark.parametrize(("fields", "messages"), [
    ({"input": "Hi"}, [HI]), ({"input": [HI]}, [HI]), ({"input": [{"type": "message", **HI}]}, [HI]),
    ({"input": "Hi", "instructions": "Be brief."}, [BRIEF, HI]), ({"input": [BRIEF, HI]}, [BRIEF, HI]),
    ({"input": [{"role": "developer", "content": "Be brief."}, HI]}, [BRIEF, HI]),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "H"}, {"type": "text", "text": "i"}]}]},
     [HI]),
    ({"input": [HI, {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                     "content": [{"type": "output_text", "text": "Yes?", "annotations": []}]}, HI]},
     [HI, {"role": "assistant", "content": "Yes?"}, HI]),
    ({"input": ""}, [{"role": "user", "content": ""}]),
])  # fmt: skip
def test_conversations(client: ServerClient, fields: dict[str, Any], messages: list[dict[str, str]]) -> None:
    count = client.post("/tokenize", json={"messages": messages}).raise_for_status().json()["count"]
    assert whole_of(client, **fields, max_output_tokens=1)["usage"]["input_tokens"] == count


def test_answer_can_be_sent_back(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(model="scripted", input="Hi")
    turns: list[Any] = [HI, *first.output, {"role": "user", "content": "And?"}]
    second = sdk.responses.create(model="scripted", input=turns)
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


@pytest.mark.parametrize(("fields", "param"), [
    ({"input": None}, "input"), ({"input": 3}, "input"), ({"input": []}, "input"), ({"input": ["x"]}, "input[0]"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content"),
    ({"input": [{"type": {}, "role": "user"}]}, "input[0]"), ({"input": [{"type": "item_reference"}]}, "input[0]"),
    ({"max_output_tokens": 0}, "max_output_tokens"), ({"temperature": 3}, "temperature"), ({"top_p": 1.5}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"), ({"include": ["nonsense"]}, "include"), ({"include": "x"}, "include"),
    ({"metadata": {"a": 1}}, "metadata.a"), ({"instructions": 3}, "instructions"), ({"reasoning": 3}, "reasoning"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "some"}, "truncation"), ({"store": "yes"}, "store"), ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nope"}}}}, "text.format"),
    ({"text": {"format": {"type": "odd"}}}, "text.format"), ({"text": {"format": 3}}, "text.format"),
    ({"text": 3}, "text"), ({"seed": 2**70}, "seed"), ({"stream": 1}, "stream"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused(client: ServerClient, fields: dict[str, Any], param: str) -> None:
    answer = post(client, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize("fields", [
    {"store": False, "user": "me", "prompt_cache_key": "k", "service_tier": "auto", "parallel_tool_calls": False},
    {"truncation": "disabled", "tools": [], "tool_choice": "auto", "background": False, "text": {"verbosity": "low"}},
    {"text": {"format": {"type": "text"}}, "reasoning": {"effort": "low", "summary": "auto"}},
    {"instructions": None, "max_output_tokens": None, "metadata": None, "previous_response_id": None, "stream": None},
])  # fmt: skip
def test_harmless_fields_pass(client: ServerClient, fields: dict[str, Any]) -> None:
    answer = post(client, **fields)
    assert answer.status_code == 200, answer.text
    assert "x-wllm-ignored" not in answer.headers
    assert answer.json()["store"] is fields.get("store", True)


def test_unknown_fields_are_named(client: ServerClient) -> None:
    assert post(client, zzz=1).headers["x-wllm-ignored"] == "zzz"


@pytest.mark.parametrize("fields", [{"input": "word " * 9000}, {"max_output_tokens": 5000}])
def test_what_does_not_fit(client: ServerClient, fields: dict[str, Any]) -> None:
    error = post(client, **fields, stream=True).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert "maximum context length is 4096 tokens" in error["message"]


def test_unknown_model(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.create(model="nope", input="Hi")
    assert caught.value.code == "model_not_found"


def test_engine_that_dies_in_the_stream(start_server: Any) -> None:
    with start_server(step_s=0.01, reply="a" * 3000) as client:
        body = {"input": "Hi", "stream": True}
        with client.stream("POST", "/v1/responses", json=body) as answer:
            events: Any = sse_events(answer.iter_lines())
            assert next(event for event in events if event["type"] == "response.output_text.delta")
            os.kill(client.engine.pid, signal.SIGTERM)
            *_, last = events
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"]["code"] == "server_error"
        assert last["response"]["output"][0]["content"][0]["text"].startswith("a")


def test_engine_that_dies_before_the_first_token(start_server: Any) -> None:
    with start_server(step_s=2.5, crash_after=1) as client:
        (event,) = events_of(client)
    assert (event["type"], event["code"]) == ("error", "engine_died")
    assert event["message"]
