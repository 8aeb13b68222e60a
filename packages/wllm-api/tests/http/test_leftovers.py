"""What the server keeps of requests that have ended, however they ended: nothing, also without the collector."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from wllm_api.testing import wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
FORM = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": FORM}}]
ENDLESS = {"max_tokens": 3000, "ignore_eos": True}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "How is the river?"}], "max_tokens": 8} | fields


def form(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


# What is sent, and the status that it gets.
WHOLE: list[tuple[str, dict[str, Any], int]] = [
    (
        COMPLETIONS,
        {"prompt": ["a b", "c"], "n": 2, "temperature": 1.0, "logprobs": 2, "echo": True, "max_tokens": 4},
        200,
    ),
    (COMPLETIONS, {"prompt": ["a b", "c"], "stream": True, "max_tokens": 4}, 200),
    (COMPLETIONS, {"prompt": "x", "prompt_logprobs": 1, "max_tokens": 1}, 200),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 10**9}, 400),
    (COMPLETIONS, {"prompt": [10**8]}, 400),
    (CHAT, chat(stream=True, stream_options={"include_usage": True}), 200),
    (CHAT, chat(stop=["e"], logprobs=True, top_logprobs=2), 200),
    (CHAT, chat(response_format=form(FORM)), 200),
    (CHAT, chat(response_format=form({"type": "strange"})), 400),
    (CHAT, chat(structured_outputs={"regex": "("}), 400),
    (CHAT, chat(structured_outputs={"choice": ["yes", "no"]}, stream=True), 200),
    (CHAT, chat(tools=TOOLS), 200),
    (CHAT, chat(tools=TOOLS, tool_choice="required", stream=True), 200),
    (CHAT, chat(temperature="hot"), 400),
    (CHAT, chat(model="another"), 404),
    (CHAT, {"messages": 3}, 400),
    ("/v1/messages", chat(), 200),
    ("/v1/messages", chat(stream=True), 200),
    ("/v1/messages", {"messages": []}, 400),
    ("/v1/messages/count_tokens", {"model": "scripted", "messages": chat()["messages"]}, 200),
    ("/v1/responses", {"input": "hello", "store": False, "max_output_tokens": 8}, 200),
    ("/v1/responses", {"input": "hello", "store": False, "max_output_tokens": 8, "stream": True}, 200),
    ("/api/chat", {"model": "scripted", "messages": chat()["messages"], "options": {"num_predict": 8}}, 200),
    ("/api/generate", {"model": "scripted", "prompt": "x", "stream": False, "options": {"num_predict": 8}}, 200),
    ("/api/generate", {"model": "another", "prompt": "x"}, 404),
    ("/v1/nowhere", {}, 404),
]
# What nobody waits for.
LEFT = [(CHAT, chat()), (CHAT, chat(n=2, temperature=1.0)), (COMPLETIONS, {"prompt": ["a", "b"]})]


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def ours() -> Counter[str]:
    """The objects of this project's types, by name."""
    kinds = (type(one) for one in gc.get_objects())
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if str(kind.__module__).startswith("wllm_")
    )


def serve_everything(client: Any) -> None:
    """Every kind of request, each to its end or left in the middle."""
    for path, body, status in WHOLE:
        answer = client.post(path, json={"model": "scripted"} | body)
        assert answer.status_code == status, (path, body, answer.text)
    for path, body in LEFT:
        with client.stream("POST", path, json=body | ENDLESS | {"stream": True}) as answer:
            assert next(answer.iter_lines())
        with pytest.raises(httpx.ReadTimeout):
            client.post(path, json=body | ENDLESS, timeout=0.05)
    wait_until(lambda: not client.engine._streams)


@pytest.mark.usefixtures("no_collector")
def test_however_requests_end_nothing_of_them_stays(start_server: Callable[..., AbstractContextManager[Any]]) -> None:
    with start_server(step_s=0.001) as client:
        serve_everything(client)  # what is made once
        before = ours()
        for _ in range(3):
            serve_everything(client)
        wait_until(lambda: ours() - before == Counter())
