"""The clients of the contract tests: each the vendor's own package, all of one real server.

Answers are a few tokens long. The small model's own recommendation is temperature 0, so the same request gets the same
text unless a test asks for chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import ollama
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


@pytest.fixture(scope="session")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    """For what no package sends or shows."""
    with httpx.Client(base_url=server.url, timeout=300) as http:
        yield http


@pytest.fixture(scope="session")
def chat(client: openai.OpenAI, model: str) -> Ask:
    """`chat.completions.create` with four tokens of answer to a question, unless the fields say otherwise."""

    def ask(content: str = "Say hello.", **fields: Any) -> Any:
        fields = {"model": model, "messages": [user(content)], "max_tokens": 4, **fields}
        return client.chat.completions.create(**extras_of(client.chat.completions.create, fields))

    return ask


@pytest.fixture(scope="session")
def complete(client: openai.OpenAI, model: str) -> Ask:
    """`completions.create` with four tokens of answer, unless the fields say otherwise."""

    def ask(prompt: object = "The capital of France is", **fields: Any) -> Any:
        fields = {"model": model, "prompt": prompt, "max_tokens": 4, **fields}
        return client.completions.create(**extras_of(client.completions.create, fields))

    return ask


@pytest.fixture(scope="session")
def respond(client: openai.OpenAI, model: str) -> Ask:
    """`responses.create` with four tokens of answer, unless the fields say otherwise."""

    def ask(content: object = "Say hello.", **fields: Any) -> Any:
        fields = {"model": model, "input": content, "max_output_tokens": 4, **fields}
        return client.responses.create(**extras_of(client.responses.create, fields))

    return ask


@pytest.fixture(scope="session")
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300) as claude:
        yield claude


@pytest.fixture(scope="session")
def message(claude: anthropic.Anthropic, model: str) -> Ask:
    """`messages.create` with four tokens of answer, unless the fields say otherwise."""

    def ask(content: object = "Say hello.", **fields: Any) -> Any:
        fields = {
            "model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields,
        }  # fmt: skip
        return claude.messages.create(**extras_of(claude.messages.create, fields))

    return ask


@pytest.fixture(scope="session")
def llama(server: RunningServer) -> Iterator[ollama.Client]:
    client = ollama.Client(host=server.url, timeout=300)
    yield client
    client.close()


@pytest.fixture(scope="session")
def ids(http: httpx.Client) -> Callable[[str], list[int]]:
    """The token ids of a text."""

    def ids_of(text: str) -> list[int]:
        return list(http.post("/tokenize", json={"prompt": text}).json()["tokens"])

    return ids_of
