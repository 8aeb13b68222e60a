"""Every generating route keeps the server's limits, and tells of them in its own API's form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_client import message_of

from wllm_api.settings import Limits
from wllm_api.testing import wait_until

CONTEXT = 256
LONG = "word " * 400
HI = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
    "/api/chat": {"model": "scripted", "messages": HI},
    "/api/generate": {"model": "scripted", "prompt": "Hi"},
}
STREAMED = [False, True]


def longer(body: dict[str, Any]) -> dict[str, Any]:
    text = {"messages": [{"role": "user", "content": LONG}], "prompt": LONG, "input": LONG}
    return {**body, **{name: value for name, value in text.items() if name in body}}


@pytest.fixture(scope="module")
def small(start_server: Any) -> Iterator[httpx.Client]:
    """A server with a short context and a small limit of bytes."""
    with start_server(limits=Limits(max_body_bytes=5000), max_model_len=CONTEXT) as client:
        yield client


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("path", ROUTES)
def test_prompt_beyond_the_context(small: httpx.Client, path: str, stream: bool) -> None:
    """In the words by which clients know it, so that they shorten the conversation."""
    answer = small.post(path, json={**longer(ROUTES[path]), "stream": stream})
    assert answer.status_code == 400
    anthropics = rf"^prompt is too long: \d+ tokens > {CONTEXT - 1} maximum"
    words = anthropics if path == "/v1/messages" else f"maximum context length is {CONTEXT} tokens. However"
    assert re.search(words, message_of(answer))
    if path.startswith("/v1/") and path != "/v1/messages":
        assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ROUTES)
def test_body_beyond_the_limit(small: httpx.Client, path: str) -> None:
    answer = small.post(path, json={**ROUTES[path], "padding": "x" * 5000})
    assert answer.status_code == 413
    assert "the limit is 5,000" in message_of(answer)


@pytest.fixture(scope="module")
def loading(start_server: Any) -> Iterator[httpx.Client]:
    with start_server(ready=False, load_s=30) as client:
        wait_until(lambda: client.get("/version").status_code == 200)
        yield client


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("path", ROUTES)
def test_while_the_model_loads(loading: httpx.Client, path: str, stream: bool) -> None:
    answer = loading.post(path, json={**ROUTES[path], "stream": stream})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "still loading" in message_of(answer)


@pytest.fixture(scope="module")
def full(start_server: Any) -> Iterator[httpx.Client]:
    """A server whose queue is always full."""
    with start_server(limits=Limits(max_waiting=0)) as client:
        yield client


@pytest.mark.parametrize("stream", STREAMED)
@pytest.mark.parametrize("path", ROUTES)
def test_full_queue(full: httpx.Client, path: str, stream: bool) -> None:
    answer = full.post(path, json={**ROUTES[path], "stream": stream})
    assert answer.status_code == (529 if path == "/v1/messages" else 503)
    assert int(answer.headers["retry-after"]) >= 1
    assert "requests are waiting, which is the limit" in message_of(answer)


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/v1/chat/completions", 405), ("GET", "/v1/messages", 405), ("GET", "/api/chat", 405),
    ("POST", "/v1/none", 404), ("POST", "/v1/messages/none", 404), ("POST", "/api/none", 404),
    ("PUT", "/tokenize", 405),
    ("GET", "/v1/chat/completions/", 404), ("OPTIONS", "/v1/completions", 405), ("GET", "/messages", 405),
    ("GET", "//v1//messages", 405), ("POST", "/v1/messages/batches", 404), ("POST", "/v1/messagesx", 404),
    ("POST", "/api/tags", 405), ("POST", "//api/none", 404),
])  # fmt: skip
def test_routes_and_methods_that_there_are_not(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, str(client.base_url).rstrip("/") + path)
    assert answer.status_code == status
    assert re.sub("/+", "/", path) in message_of(answer)
    assert answer.headers["x-request-id"]
