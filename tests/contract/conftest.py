"""The clients of the contract tests: each the vendor's own package, all of one real server.

Answers are a few tokens long. The small model's own recommendation is temperature 0, so the same request gets the same
text unless a test asks for chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from contract.requests import extras_of, user
from server.running_server import RunningServer

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def model(server: RunningServer) -> str:
    return server.model()


@pytest.fixture(scope="session")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def asker(create: Callable[..., Any], field: str, default: object, **fields: Any) -> Ask:
    """`create` for a content and these fields, unless a test says otherwise; messages are one of a user."""

    def ask(content: Any = default, **own: Any) -> Any:
        asked = [user(content)] if field == "messages" else content
        return create(**extras_of(create, {field: asked, **fields, **own}))

    return ask


@pytest.fixture(scope="session")
def chat(client: openai.OpenAI, model: str) -> Ask:
    """`chat.completions.create` with four tokens of answer to a question, unless the fields say otherwise."""
    return asker(client.chat.completions.create, "messages", "Say hello.", model=model, max_tokens=4)


@pytest.fixture(scope="session")
def complete(client: openai.OpenAI, model: str) -> Ask:
    """`completions.create`, likewise."""
    return asker(client.completions.create, "prompt", "The capital of France is", model=model, max_tokens=4)


@pytest.fixture(scope="session")
def respond(client: openai.OpenAI, model: str) -> Ask:
    """`responses.create`, likewise."""
    return asker(client.responses.create, "input", "Say hello.", model=model, max_output_tokens=4)


@pytest.fixture(scope="session")
def message(claude: anthropic.Anthropic, model: str) -> Ask:
    """`messages.create`, likewise."""
    return asker(claude.messages.create, "messages", "Say hello.", model=model, max_tokens=4)


@pytest.fixture(scope="session")
def ids(http: httpx.Client) -> Callable[[str], list[int]]:
    """The token ids of a text."""

    def ids_of(text: str) -> list[int]:
        return list(http.post("/tokenize", json={"prompt": text}).json()["tokens"])

    return ids_of
