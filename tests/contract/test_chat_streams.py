"""Chat streams: their chunks one by one, and that they join to the whole answer whatever was asked for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from contract.conftest import Ask
from contract.requests import CITY, function, joined, later, schema_form, user
from server.running_server import RunningServer


@pytest.fixture(scope="module")
def chunks(chat: Ask) -> list[Any]:
    return list(chat(max_tokens=8, stream=True))


def test_head_is_in_every_chunk(chunks: list[Any], model: str) -> None:
    heads = {(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}
    ((answer_id, _, name, kind),) = heads
    assert answer_id.startswith("chatcmpl-") and name == model and kind == "chat.completion.chunk"


def test_role_comes_first_and_once(chunks: list[Any]) -> None:
    roles = [chunk.choices[0].delta.role for chunk in chunks]
    assert roles[0] == "assistant" and set(roles[1:]) == {None}


def test_finish_reason_comes_once(chunks: list[Any]) -> None:
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}


def test_usage_is_not_sent_unasked(chunks: list[Any]) -> None:
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_text_comes_in_pieces(chunks: list[Any]) -> None:
    assert len([chunk for chunk in chunks if chunk.choices[0].delta.content]) > 3


def test_usage_chunk_is_last(chat: Ask) -> None:
    *others, last = chat(stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.completion_tokens == 4
    assert last.usage.total_tokens == last.usage.prompt_tokens + 4
    assert all(chunk.usage is None and chunk.choices for chunk in others)


def test_continuous_usage(chat: Ask) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk.usage.completion_tokens for chunk in chat(stream=True, stream_options=options)]
    assert counts == sorted(counts) and counts[-1] == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["you", "!"], "include_stop_str_in_output": True}, {"temperature": 1.5, "seed": 3},
        {"response_format": schema_form(CITY), "max_tokens": 20}, {"min_tokens": 6, "stop": "Hello"},
        {"messages": [user("Repeat: 🙂 日本語 naïve")], "max_tokens": 20}, later({}), later({"max_tokens": 1}),
        later({"stop": " can"}), later({"temperature": 1, "seed": 4, "frequency_penalty": 1}),
        later({"structured_outputs": {"choice": ["yes", "no"]}}), later({"logit_bias": {"0": -100}}),
        later({"ignore_eos": True, "max_tokens": 12}), later({"logprobs": True, "top_logprobs": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_stream_is_the_whole(chat: Ask, fields: dict[str, Any]) -> None:
    fields = {"max_tokens": 8, **fields}
    whole = chat(**fields)
    *chunks, last = chat(stream=True, stream_options={"include_usage": True}, **fields)
    assert joined(chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_choices_of_a_stream_are_those_of_the_whole(chat: Ask) -> None:
    fields: Any = {"n": 3, "seed": 5, "temperature": 1.5}
    texts = ["", "", ""]
    reasons: list[Any] = [None, None, None]
    for chunk in chat(stream=True, **fields):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = reasons[choice.index] or choice.finish_reason
    assert texts == [choice.message.content for choice in chat(**fields).choices]
    assert reasons == ["length"] * 3


def test_forced_call_of_a_stream(chat: Ask) -> None:
    fields: Any = {"tools": [function()], "tool_choice": "required", "max_tokens": 40}
    deltas = [
        call
        for chunk in chat(stream=True, **fields)
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
    ]
    (call,) = chat(**fields).choices[0].message.tool_calls
    assert [delta.function.name for delta in deltas if delta.function.name] == ["get_weather"]
    assert deltas[0].id and deltas[0].index == 0 and not any(delta.id for delta in deltas[1:])
    assert "".join(delta.function.arguments or "" for delta in deltas) == call.function.arguments


def test_helper_of_the_package(server: RunningServer, model: str) -> None:
    with (
        server.client() as client,
        client.chat.completions.stream(model=model, messages=[user("Say hello.")]) as stream,  # type: ignore[list-item]
    ):
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content and final.choices[0].finish_reason == "stop"


def test_asynchronous_client(server: RunningServer, model: str, chat: Ask) -> None:
    async def ask() -> str:
        async with server.async_client() as client:
            stream = await client.chat.completions.create(
                model=model, messages=[user("Say hello.")], max_tokens=4, stream=True  # type: ignore[list-item]
            )  # fmt: skip
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(ask()) == chat().choices[0].message.content


def test_on_the_wire(http: httpx.Client) -> None:
    body = {"messages": [user("Say hello.")], "max_tokens": 2, "stream": True}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    # Clients break where the key is missing, even when it is null.
    assert all("finish_reason" in choice for event in events for choice in json.loads(event)["choices"])
