"""langchain-openai: chat, streams, structured output, forced tools, its exception for prompts that are too long."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from server.running_server import RunningServer

pytest.importorskip("langchain_openai", reason="nox -s clients installs it")

from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

FRANCE = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Rome"]


@pytest.fixture(scope="module")
def settings(server: RunningServer) -> dict[str, Any]:
    return {"base_url": f"{server.url}/v1", "api_key": "none", "model": server.model(), "temperature": 0}


@pytest.fixture(scope="module")
def llm(settings: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(**settings, max_tokens=40)


def test_chat(llm: ChatOpenAI) -> None:
    answer = llm.invoke(FRANCE)
    assert "Paris" in answer.content and answer.usage_metadata["output_tokens"] > 4


def test_stream(llm: ChatOpenAI) -> None:
    pieces = [piece.content for piece in llm.stream(FRANCE)]
    assert len(pieces) > 4 and "".join(pieces) == llm.invoke(FRANCE).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(llm: ChatOpenAI, method: Any) -> None:
    assert isinstance(llm.with_structured_output(City, method=method).invoke("Paris as JSON."), City)


@pytest.mark.parametrize("choice", ["City", "required"])
def test_tools(llm: ChatOpenAI, choice: str) -> None:
    (call,) = llm.bind_tools([City], tool_choice=choice, parallel_tool_calls=False).invoke("Paris").tool_calls
    assert call["name"] == "City" and City(**call["args"]) and call["id"]


def test_tools_on_offer(llm: ChatOpenAI) -> None:
    """The model is shown the tool; it may call it, in arguments that fit, or answer."""
    answer = llm.bind_tools([City]).invoke(FRANCE)
    assert answer.usage_metadata["input_tokens"] > llm.invoke(FRANCE).usage_metadata["input_tokens"]
    assert answer.content or answer.tool_calls
    assert not answer.invalid_tool_calls and all(City(**call["args"]) for call in answer.tool_calls)


def test_responses_api(settings: dict[str, Any]) -> None:
    llm = ChatOpenAI(**settings, max_tokens=40, use_responses_api=True)
    assert "Paris" in llm.invoke(FRANCE).text


def test_completions(settings: dict[str, Any]) -> None:
    assert OpenAI(**settings, max_tokens=1).invoke("The capital of France is") == " Paris"


def test_prompt_that_does_not_fit(llm: ChatOpenAI) -> None:
    with pytest.raises(ContextOverflowError):
        llm.invoke("word " * 9000)
