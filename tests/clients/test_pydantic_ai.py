"""Pydantic AI: text, streams, and objects by a forced tool and by the schema itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from server.running_server import RunningServer

pytest.importorskip("pydantic_ai", reason="nox -s clients installs it")

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(server: RunningServer, request: pytest.FixtureRequest) -> Any:
    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
    return request.param(server.model(), provider=provider, settings={"temperature": 0, "max_tokens": 80})


def test_text(model: Any) -> None:
    assert "Paris" in Agent(model).run_sync("What is the capital of France?").output


@pytest.mark.parametrize("output", [Person, NativeOutput(Person)], ids=["tool", "native"])
def test_object(model: Any, output: Any) -> None:
    assert isinstance(Agent(model, output_type=output).run_sync("Ada is 36 years old.").output, Person)


def test_stream(model: Any) -> None:
    async def ask() -> list[str]:
        async with Agent(model).run_stream("What is the capital of France?") as answer:
            return [text async for text in answer.stream_text(delta=True, debounce_by=None)]

    pieces = asyncio.run(ask())
    assert "Paris" in "".join(pieces) and len(pieces) > 4
