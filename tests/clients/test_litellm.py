"""LiteLLM by each prefix that fits: chat, streams, forced tools, and its reading of refusals."""

from __future__ import annotations

import os
from typing import Any

import pytest
from server.running_server import RunningServer

# It would ask for a list of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm = pytest.importorskip("litellm", reason="nox -s clients installs it")

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
    },
}


def settings_of(server: RunningServer, prefix: str) -> dict[str, Any]:
    base = server.url if prefix in ("anthropic", "ollama_chat") else f"{server.url}/v1"
    return {
        "model": f"{prefix}/{server.model()}", "api_base": base, "api_key": "none", "temperature": 0,
        "max_tokens": 40, "messages": FRANCE,
    }  # fmt: skip


@pytest.fixture(params=["hosted_vllm", "openai", "anthropic", "ollama_chat"])
def settings(server: RunningServer, request: pytest.FixtureRequest) -> dict[str, Any]:
    return settings_of(server, request.param)


@pytest.fixture(params=["hosted_vllm", "openai"])
def of_openai(server: RunningServer, request: pytest.FixtureRequest) -> dict[str, Any]:
    return settings_of(server, request.param)


def test_chat(settings: dict[str, Any]) -> None:
    answer = litellm.completion(**settings)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens > 4


def test_stream(settings: dict[str, Any]) -> None:
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **settings)]
    assert "Paris" in "".join(pieces) and len(pieces) > 4


def test_tools(of_openai: dict[str, Any]) -> None:
    answer = litellm.completion(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, **of_openai)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"


def test_prompt_that_does_not_fit(of_openai: dict[str, Any]) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**of_openai, "messages": [{"role": "user", "content": "word " * 9000}]})


def test_unknown_model(of_openai: dict[str, Any]) -> None:
    prefix = of_openai["model"].partition("/")[0]
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**of_openai, "model": f"{prefix}/absent"})
