"""Anthropic's API through Anthropic's package: messages, events in their order, counting, its own errors."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx
import pytest
from contract.conftest import Ask
from server.running_server import RunningServer

FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def answer(message: Ask) -> Any:
    return message(FRANCE, max_tokens=40)


@pytest.fixture(scope="module")
def events(message: Ask) -> list[Any]:
    return list(message(FRANCE, max_tokens=40, stream=True))


def test_head(answer: Any, model: str) -> None:
    assert answer.id.startswith("msg_") and answer.type == "message" and answer.role == "assistant"
    assert answer.model == model


def test_content(answer: Any) -> None:
    (block,) = answer.content
    assert block.type == "text" and block.text.endswith("Paris.")
    assert answer.stop_reason == "end_turn" and answer.stop_sequence is None


def test_usage(answer: Any) -> None:
    assert answer.usage.output_tokens > 4 and answer.usage.cache_creation_input_tokens == 0
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 10


@pytest.mark.parametrize("limit", [1, 3])
def test_max_tokens(message: Ask, limit: int) -> None:
    answer = message(max_tokens=limit)
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == limit


def test_stop_sequence_is_named(message: Ask) -> None:
    answer = message(FRANCE, max_tokens=40, stop_sequences=[" Paris", "never"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " Paris")
    assert answer.content[0].text == "The capital of France is"


def test_events_are_in_order(events: list[Any]) -> None:
    kinds = [event.type for event in events]
    start, end = kinds[:2], kinds[-3:]
    assert start == ["message_start", "content_block_start"]
    assert end == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_first_event_is_an_empty_message(events: list[Any], model: str) -> None:
    begun = events[0].message
    assert begun.content == [] and begun.stop_reason is None and begun.model == model
    assert begun.usage.input_tokens + begun.usage.cache_read_input_tokens > 10


def test_stream_is_the_whole(events: list[Any], answer: Any) -> None:
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == answer.content[0].text
    assert events[-2].delta.stop_reason == "end_turn"
    assert events[-2].usage.output_tokens == answer.usage.output_tokens


def test_helper_of_the_package(claude: anthropic.Anthropic, model: str, answer: Any) -> None:
    messages: Any = [{"role": "user", "content": FRANCE}]
    with claude.messages.stream(model=model, messages=messages, max_tokens=40) as stream:
        text = "".join(stream.text_stream)
        assert text == answer.content[0].text and stream.get_final_message().stop_reason == "end_turn"


def test_asynchronous_client(server: RunningServer, model: str, message: Ask) -> None:
    async def ask() -> Any:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            messages: Any = [{"role": "user", "content": "Say hello."}]
            return await client.messages.create(model=model, max_tokens=4, messages=messages)

    assert asyncio.run(ask()).content[0].text == message().content[0].text


def input_tokens(answer: Any) -> int:
    return int(answer.usage.input_tokens + answer.usage.cache_read_input_tokens)


@pytest.mark.parametrize("system", ["You are a pirate.", [{"type": "text", "text": "You are a pirate."}]], ids=str)
def test_system_is_read(message: Ask, system: Any) -> None:
    assert input_tokens(message("Hi", system=system, max_tokens=1)) != input_tokens(message("Hi", max_tokens=1))


def test_blocks_are_read(message: Ask) -> None:
    blocks = [{"type": "text", "text": "Say hello.", "cache_control": {"type": "ephemeral"}}]
    assert message(blocks).content[0].text == message().content[0].text


def test_last_turn_of_the_assistant_is_continued(message: Ask) -> None:
    turns = [{"role": "user", "content": FRANCE}, {"role": "assistant", "content": "The capital of France is"}]
    assert message(messages=turns).content[0].text.startswith(" Paris")


def test_next_turn_is_cached(message: Ask, answer: Any) -> None:
    turns = [{"role": "user", "content": FRANCE}, {"role": "assistant", "content": answer.content},
             {"role": "user", "content": "And of Italy?"}]  # fmt: skip
    following = message(messages=[{**turn} for turn in turns], max_tokens=12)
    assert "Rome" in following.content[0].text and following.usage.cache_read_input_tokens > 0


def test_temperature_brings_chance(message: Ask) -> None:
    texts = {message("Tell me a story.", temperature=1, max_tokens=24).content[0].text for _ in range(3)}
    assert len(texts) > 1
    assert message(temperature=1, top_k=1).content[0].text == message().content[0].text


KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "someone"}}, {"service_tier": "auto"}, {"thinking": {"type": "disabled"}},
        {"tools": []}, {"context_management": KEEP_ALL},
    ],
    ids=str,
)  # fmt: skip
def test_fields_that_change_nothing(message: Ask, fields: dict[str, Any]) -> None:
    """Among them what Claude Code sends with every request."""
    assert message(**fields).content[0].text == message().content[0].text


@pytest.mark.parametrize("more", [{}, {"system": "You are a pirate."}], ids=str)
def test_count_is_that_of_the_answer(claude: anthropic.Anthropic, message: Ask, model: str, more: Any) -> None:
    messages: Any = [{"role": "user", "content": FRANCE}]
    count = claude.messages.count_tokens(model=model, messages=messages, **more)
    assert count.input_tokens == input_tokens(message(FRANCE, max_tokens=1, **more))


def test_models(claude: anthropic.Anthropic, model: str) -> None:
    (listed,) = claude.models.list()
    assert listed.id == model == claude.models.retrieve(model).id and listed.type == "model"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages"), ({"messages": "Hi"}, "messages"), ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "nobody", "content": "Hi"}]}, "role"), ({"temperature": 1.5}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "strange"}]}]}, "strange"), ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"), ({"system": 5}, "system"), ({"max_tokens": "9"}, "max_tokens"),
        ({"messages": [{"role": "user"}]}, "content"), ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_in_its_own_words(message: Ask, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=words) as refused:
        message(**fields)
    body: Any = refused.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error" and body["request_id"]


def test_unknown_model(message: Ask) -> None:
    with pytest.raises(anthropic.NotFoundError) as refused:
        message(model="absent")
    body: Any = refused.value.body
    assert body["error"]["type"] == "not_found_error"


def test_prompt_that_does_not_fit(message: Ask) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        message("word " * 9000)


def test_wrong_method(http: httpx.Client) -> None:
    answer = http.get("/v1/messages")
    assert answer.status_code == 405 and answer.json()["type"] == "error"
