"""Anthropic's API and OpenAI's newer one: their SDKs get the answers that chat completions give, by the real model."""

from __future__ import annotations

import anthropic
import pytest
from server.running_server import RunningServer

QUESTION = "What is the capital of France?"


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
