"""What /v1/messages and /v1/responses have in common: clients that go, bodies that are garbage."""

import json
import random
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from wllm_api.schemas.messages import MessagesRequest
from wllm_api.schemas.responses import ResponsesRequest
from wllm_api.testing import wait_until

BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 3000, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
}
SAMPLES = 400


@pytest.fixture(scope="module")
def slow(start_server: Any) -> Iterator[Any]:
    """A server whose answers take half a minute."""
    with start_server(step_s=0.01, reply="a" * 3000) as client:
        yield client


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
def test_request_ends_with_its_client(slow: Any, path: str, stream: bool) -> None:
    running = slow.app.state.serving.running
    content = json.dumps({**BODIES[path], "stream": stream}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(content)}\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", slow.base_url.port), timeout=20)) as sock:
        sock.sendall(head.encode() + content)
        if stream:
            sock.recv(1000)
        wait_until(lambda: len(running) == 1)
    wait_until(lambda: not running, 5)


def garbage(rng: random.Random, depth: int = 0) -> object:
    plain = ["", "x", "text", "user", -1, 0, 1, 2**70, 0.5, 1e308, True, False, None, "🫠", "\x00"]
    kind = rng.random()
    if depth > 3 or kind < 0.5:
        return rng.choice(plain)
    if kind < 0.7:
        return [garbage(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    names = ["type", "text", "role", "content", "format", "effort", "source", "x"]
    return {rng.choice(names): garbage(rng, depth + 1) for _ in range(rng.randint(0, 4))}


@pytest.mark.parametrize(("path", "schema"), [("/v1/messages", MessagesRequest), ("/v1/responses", ResponsesRequest)])
def test_garbage_is_answered_or_refused(
    client: httpx.Client, path: str, schema: type[MessagesRequest] | type[ResponsesRequest]
) -> None:
    rng = random.Random(path)
    names = sorted({*schema.model_fields, *schema.no_effect, *schema.unsupported} - {"model"})
    statuses = []
    for _ in range(SAMPLES):
        body = {"max_tokens": 2, "max_output_tokens": 2, **BODIES[path], "stream": False}
        for name in rng.sample(names, rng.randint(1, 3)):
            body[name] = garbage(rng)
        answer = client.post(path, content=json.dumps(body))
        assert answer.status_code in (200, 400), (body, answer.text)
        statuses.append(answer.status_code)
    assert {200, 400} == set(statuses)
    assert client.get("/health").status_code == 200


def test_fields_left_out_stay_the_models_choice() -> None:
    """The model's recommendation stands where the request says nothing."""
    message = MessagesRequest.model_validate(BODIES["/v1/messages"])
    assert message.sampling().model_fields_set == {"stop"}
    response = ResponsesRequest.model_validate(BODIES["/v1/responses"])
    assert response.sampling().model_fields_set == set()


TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}|{{ enable_thinking }}|{{ reasoning_effort }}|"


@pytest.fixture(scope="module")
def telling(start_server: Any) -> Iterator[Any]:
    """A server whose chat template writes down what it is told."""
    with start_server(chat_template=TEMPLATE) as client:
        yield client


@pytest.mark.parametrize(("path", "fields", "prompt"), [
    ("/v1/messages", {}, "Hi|False||"), ("/v1/messages", {"thinking": {"type": "disabled"}}, "Hi|False||"),
    ("/v1/messages", {"output_config": {"effort": "low"}}, "Hi|False|low|"),
    ("/v1/responses", {}, "Hi|||"), ("/v1/responses", {"reasoning": {"effort": "high"}}, "Hi|True|high|"),
    ("/v1/responses", {"reasoning": {"effort": "none"}}, "Hi|False|none|"),
])  # fmt: skip
def test_what_the_template_is_told(
    telling: Any, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any], prompt: str
) -> None:
    seen = []
    submit = telling.engine.submit

    def spy(token_ids: Any, params: Any) -> Any:
        seen.append(list(token_ids))
        return submit(token_ids, params)

    monkeypatch.setattr(telling.engine, "submit", spy)
    telling.post(path, json={**BODIES[path], **fields}).raise_for_status()
    (token_ids,) = seen
    assert telling.post("/detokenize", json={"tokens": token_ids}).json()["prompt"] == prompt


@pytest.mark.parametrize("path", BODIES)
def test_template_that_refuses(start_server: Any, path: str) -> None:
    with start_server(chat_template="{{ raise_exception('only in verse') }}") as client:
        answer = client.post(path, json={**BODIES[path], "stream": True})
    assert answer.status_code == 400
    assert "only in verse" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
def test_model_that_cannot_chat(start_server: Any, path: str) -> None:
    with start_server(chat_template=None) as client:
        answer = client.post(path, json=BODIES[path])
    assert answer.status_code == 400
    assert "cannot chat" in answer.json()["error"]["message"]
