"""A model of another task is named, on every route that needs one."""

from __future__ import annotations

from typing import Any

import httpx
import ollama
import pytest
from server_client import message_of

from wllm_api.testing import wait_until

USER = [{"role": "user", "content": "Hi"}]
WRITING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": USER}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/responses/input_tokens", {"input": "x"}),
    ("/v1/messages", {"messages": USER, "max_tokens": 4}),
    ("/v1/messages/count_tokens", {"messages": USER}),
    ("/api/chat", {"model": "scripted", "messages": USER}),
    ("/api/generate", {"model": "scripted", "prompt": "x"}),
]
SCORING: list[tuple[str, dict[str, Any]]] = [
    ("/rerank", {"query": "x", "documents": ["x"]}),
    ("/v1/rerank", {"query": "x", "documents": ["x"]}),
    ("/v2/rerank", {"query": "x", "documents": ["x"]}),
    ("/score", {"text_1": "x", "text_2": "x"}),
    ("/v1/score", {"text_1": "x", "text_2": "x"}),
]
EMBEDDING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "x"}),
    ("/api/embed", {"model": "scripted", "input": "x"}),
    ("/api/embeddings", {"model": "scripted", "prompt": "x"}),
]


@pytest.mark.parametrize(("path", "body"), WRITING)
@pytest.mark.parametrize(("fixture", "route"), [("embedder", "/v1/embeddings"), ("cross_encoder", "/v1/rerank")])
def test_no_text_of_a_pooling_model(
    request: pytest.FixtureRequest, path: str, body: dict[str, Any], fixture: str, route: str
) -> None:
    answer = request.getfixturevalue(fixture).post(path, json=body)
    assert answer.status_code == 400
    assert "The model 'scripted'" in message_of(answer) and route in message_of(answer)


@pytest.mark.parametrize(("path", "body"), [*SCORING, *EMBEDDING])
def test_no_vectors_of_a_model_that_writes(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert "The model 'scripted' writes text" in message_of(answer)
    if not path.startswith("/api"):
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("model", "unsupported_task")


@pytest.mark.parametrize(("path", "body"), EMBEDDING)
def test_no_vectors_of_a_cross_encoder(cross_encoder: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = cross_encoder.post(path, json=body)
    assert answer.status_code == 400
    assert "/v1/score" in message_of(answer)


@pytest.mark.parametrize(
    ("fixture", "task", "capabilities"),
    [
        ("client", "generate", ["completion", "tools"]),
        ("embedder", "embed", ["embedding"]),
        ("cross_encoder", "score", []),
    ],
)
def test_lists_tell_the_task(request: pytest.FixtureRequest, fixture: str, task: str, capabilities: list[str]) -> None:
    client: httpx.Client = request.getfixturevalue(fixture)
    assert [model["task"] for model in client.get("/v1/models").json()["data"]] == [task, task]
    assert client.post("/api/show", json={"model": "scripted"}).json()["capabilities"] == capabilities


@pytest.mark.parametrize("fixture", ["embedder", "cross_encoder"])
def test_the_tokenizer_serves_any_task(request: pytest.FixtureRequest, fixture: str) -> None:
    client: httpx.Client = request.getfixturevalue(fixture)
    ids = client.post("/tokenize", json={"prompt": "the cat"}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "the cat"}


def test_ollamas_package(embedder: httpx.Client) -> None:
    sdk = embedder.ollama_sdk()
    wanted = embedder.post("/v1/embeddings", json={"input": ["the cat", "xyz"]}).json()["data"]
    answer = sdk.embed("scripted:latest", ["the cat", "xyz"], keep_alive="5m", options={"temperature": 0})
    assert [list(vector) for vector in answer.embeddings] == [entry["embedding"] for entry in wanted]
    assert answer.prompt_eval_count and answer.total_duration and answer.load_duration is not None
    assert [list(vector) for vector in sdk.embed("scripted", "the cat").embeddings] == [wanted[0]["embedding"]]
    assert list(sdk.embeddings("scripted", "the cat").embedding) == wanted[0]["embedding"]
    assert list(sdk.embed("scripted", []).embeddings) == []
    assert list(sdk.embeddings("scripted", "").embedding) == []
    long = "the cat " * 80
    assert sdk.embed("scripted", long).prompt_eval_count == 64
    with pytest.raises(ollama.ResponseError, match="maximum context length is 64"):
        sdk.embed("scripted", long, truncate=False)
    with pytest.raises(ollama.ResponseError, match="dimensions"):
        sdk.embed("scripted", "x", dimensions=3)
    sdk.close()


def test_the_engine_itself_refuses_the_other_kind(client: Any, embedder: Any) -> None:
    """What the routes let through by a fault of theirs fails alone."""
    for server, path, body in ((client, *EMBEDDING[0]), (embedder, *WRITING[1])):
        info = server.engine.info
        pretended = "embed" if info.task == "generate" else "generate"
        object.__setattr__(info, "task", pretended)
        try:
            answer = server.post(path, json=body)
        finally:
            object.__setattr__(info, "task", "generate" if pretended == "embed" else "embed")
        assert answer.status_code == 500, answer.text
        assert server.get("/health").status_code == 200
        wait_until(lambda server=server: not server.app.state.serving.running)
