"""Anthropic's API and OpenAI's newer one: their SDKs get the answers that chat completions give, by the real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import ollama
import openai
import pytest
from server.running_server import RunningServer

QUESTION = "What is the capital of France?"
USER: Any = [{"role": "user", "content": QUESTION}]
SCHEMA: dict[str, Any] = {
    "type": "object", "additionalProperties": False, "required": ["city"],
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
}  # fmt: skip


@pytest.fixture
def chat_text(server: RunningServer) -> str:
    """The greedy answer of chat completions."""
    answer = server.client().chat.completions.create(
        model=server.model(), messages=[{"role": "user", "content": QUESTION}], temperature=0
    )
    text = answer.choices[0].message.content or ""
    assert "Paris" in text
    return text


def test_anthropic_message(server: RunningServer, chat_text: str) -> None:
    greedy = {"temperature": 0}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300) as client:
        answer = client.messages.create(
            model=server.model(),
            max_tokens=100_000,
            messages=[{"role": "user", "content": QUESTION}],
            extra_body=greedy,
        )
        with client.messages.stream(
            model=server.model(),
            max_tokens=100_000,
            messages=[{"role": "user", "content": QUESTION}],
            extra_body=greedy,
        ) as stream:
            streamed = "".join(stream.text_stream)
            final = stream.get_final_message()
        count = client.messages.count_tokens(model=server.model(), messages=[{"role": "user", "content": QUESTION}])
    assert [block.text for block in answer.content if block.type == "text"] == [chat_text] == [streamed]
    assert answer.stop_reason == final.stop_reason == "end_turn"
    assert answer.usage.output_tokens == final.usage.output_tokens > 0
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == count.input_tokens


def test_response(server: RunningServer, chat_text: str) -> None:
    client, model = server.client(), server.model()
    answer = client.responses.create(model=model, input=QUESTION, temperature=0)
    with client.responses.stream(model=model, input=QUESTION, temperature=0) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert answer.output_text == streamed == final.output_text == chat_text
    assert answer.status == final.status == "completed"
    assert answer.usage is not None and final.usage is not None
    assert answer.usage.output_tokens == final.usage.output_tokens > 0


@pytest.fixture
def messages(server: RunningServer) -> Iterator[Any]:
    """Anthropic's client."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300) as client:
        yield client.messages


def test_forced_call_of_a_message(server: RunningServer, messages: Any) -> None:
    fields: Any = {"model": server.model(), "max_tokens": 60, "messages": USER, "extra_body": {"temperature": 0}}
    fields["tools"] = [{"name": "get_weather", "input_schema": SCHEMA}]
    fields["tool_choice"] = {"type": "tool", "name": "get_weather"}
    answer = messages.create(**fields)
    with messages.stream(**fields) as stream:
        final = stream.get_final_message()
    for one in (answer, final):
        assert one.stop_reason == "tool_use"
        (block,) = one.content
        assert block.name == "get_weather"
        jsonschema.validate(block.input, SCHEMA)
        assert block.input == answer.content[0].input


def test_forced_call_of_a_response(server: RunningServer) -> None:
    fields: Any = {"model": server.model(), "input": QUESTION, "temperature": 0, "max_output_tokens": 60}
    fields["tools"] = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}]
    fields |= {"tool_choice": "required", "parallel_tool_calls": False}
    responses = server.client().responses
    answer = responses.create(**fields)
    with responses.stream(**fields) as stream:
        final = stream.get_final_response()
    (call,), (streamed,) = answer.output, final.output
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), SCHEMA)
    assert (streamed.type, streamed.name, streamed.arguments) == (call.type, call.name, call.arguments)


def test_forms(server: RunningServer, messages: Any) -> None:
    """The same schema through each API."""
    model, form = server.model(), {"type": "json_schema", "schema": SCHEMA}
    text: Any = {"format": {**form, "name": "x"}}
    texts = [server.client().responses.create(model=model, input=QUESTION, temperature=0, text=text).output_text]
    fields: Any = {"output_config": {"format": form}, "extra_body": {"temperature": 0}}
    texts.append(messages.create(model=model, max_tokens=99, messages=USER, **fields).content[0].text)
    client = ollama.Client(host=server.url)
    greedy = {"temperature": 0}
    texts.append(client.chat(model, messages=USER, format=SCHEMA, options=greedy).message.content or "")
    texts.append(client.generate(model, QUESTION, format=SCHEMA, options=greedy).response or "")
    client.close()
    for one in texts:
        jsonschema.validate(json.loads(one), SCHEMA)
    assert len(set(texts)) == 1


def test_going_on_from_a_response(server: RunningServer) -> None:
    client, model = server.client(), server.model()
    first = client.responses.create(model=model, input=QUESTION, temperature=0)
    second = client.responses.create(
        model=model, input="And of Italy?", previous_response_id=first.id, temperature=0, max_output_tokens=12
    )
    turns: Any = [*USER, *first.output, {"role": "user", "content": "And of Italy?"}]
    same = client.responses.create(model=model, input=turns, temperature=0, max_output_tokens=12, store=False)
    assert second.output_text == same.output_text != ""
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(same.id)
