"""LlamaIndex's OpenAILike: chat, streams, completion, an object."""

from __future__ import annotations

from typing import Any

import pytest
from server.running_server import RunningServer

pytest.importorskip("llama_index.llms.openai_like", reason="nox -s clients installs it")

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

FRANCE = [ChatMessage(role="user", content="What is the capital of France?")]


@pytest.fixture(scope="module")
def settings(server: RunningServer) -> dict[str, Any]:
    return {
        "api_base": f"{server.url}/v1", "api_key": "none", "model": server.model(), "temperature": 0,
        "max_tokens": 20, "context_window": 8192,
    }  # fmt: skip


def test_chat(settings: dict[str, Any]) -> None:
    assert "Paris" in OpenAILike(**settings, is_chat_model=True).chat(FRANCE).message.content


def test_stream(settings: dict[str, Any]) -> None:
    pieces = [part.delta or "" for part in OpenAILike(**settings, is_chat_model=True).stream_chat(FRANCE)]
    assert "Paris" in "".join(pieces) and len(pieces) > 4


def test_completion(settings: dict[str, Any]) -> None:
    assert OpenAILike(**settings).complete("The capital of France is").text.startswith(" Paris")
