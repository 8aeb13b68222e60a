"""What Ollama's API refuses, and how: a 400 or 404 with a text, whatever the body, and never a fault of ours."""

import json
import random
from typing import Any

import httpx
import pytest

USER = [{"role": "user", "content": "Hello there"}]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show", "/api/embed", "/api/embeddings"])
@pytest.mark.parametrize("name", ["nope", "scripted:7b", "scripted:latest:latest", "latest", "Scripted/"])
def test_unknown_names(client: httpx.Client, path: str, name: str) -> None:
    answer = client.post(path, json={"model": name, "messages": USER, "prompt": "x"})
    assert answer.status_code == 404
    assert answer.json() == {"error": f"model '{name}' not found. This server has: scripted, org/other-name."}


@pytest.mark.parametrize(("path", "body", "named"), [
    ("/api/chat", {"messages": USER, "format": "xml"}, "format"),
    ("/api/chat", {"messages": USER, "format": 3}, "format"),
    ("/api/chat", {"messages": USER, "format": {"type": "nope"}}, "format"),
    ("/api/generate", {"prompt": "x", "format": {"minContains": 2}}, "'format' cannot be used"),
    ("/api/chat", {"messages": USER, "tools": [{"type": "function"}]}, "tools[0].function"),
    ("/api/chat", {"messages": USER, "tools": [{"type": "other", "function": {"name": "f"}}]}, "tools[0].type"),
    ("/api/chat", {"messages": USER, "tools": {"name": "f"}}, "tools"),
    ("/api/chat", {"messages": USER, "think": "hard"}, "think"), ("/api/chat", {"messages": USER, "think": 1}, "think"),
    ("/api/chat", {"messages": USER, "truncate": "x"}, "truncate"),
    ("/api/generate", {"prompt": "x", "raw": True, "think": True}, "think"),
    ("/api/generate", {"prompt": "x", "suffix": "y", "system": "z"}, "system"),
    ("/api/chat", {"messages": USER, "think": True}, "think"),
    ("/api/chat", {"messages": USER, "think": "high"}, "think"),
    ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
    ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "images"),
    ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
    ("/api/generate", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("/api/generate", {"prompt": "x", "context": [1, 2]}, "context"),
    ("/api/generate", {"prompt": "x", "raw": True, "system": "y"}, "raw"),
    ("/api/generate", {"prompt": "x", "truncate": True}, "truncate"),
    ("/api/generate", {"prompt": "x", "shift": True}, "shift"),
    ("/api/generate", {"prompt": "x", "top_logprobs": 2}, "top_logprobs"),
    ("/api/generate", {"prompt": "x", "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("/api/generate", {"prompt": "x", "keep_alive": "soon"}, "keep_alive"),
    ("/api/generate", {"prompt": "x", "keep_alive": [5]}, "keep_alive"),
    ("/api/generate", {"prompt": "", "keep_alive": 0}, "keep_alive"),
    ("/api/chat", {"messages": [], "keep_alive": "0s"}, "keep_alive"),
    ("/api/generate", {"prompt": 5}, "prompt"),
    ("/api/generate", {"prompt": "x", "stream": "no"}, "stream"),
    ("/api/chat", {"messages": "Hi"}, "messages"),
    ("/api/chat", {"messages": ["Hi"]}, "messages"),
    ("/api/chat", {"messages": [{"content": "Hi"}]}, "role"),
    ("/api/chat", {"messages": [{"role": "pirate", "content": "Hi"}]}, "role"),
    ("/api/chat", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "content"),
    ("/api/chat", {"messages": USER, "options": []}, "options"),
    ("/api/chat", {"messages": USER, "options": {"num_ctx": 4097}}, "num_ctx"),
    ("/api/chat", {"messages": USER, "options": {"num_predict": -3}}, "num_predict"),
    ("/api/chat", {"messages": USER, "options": {"num_predict": 1.5}}, "num_predict"),
    ("/api/chat", {"messages": USER, "options": {"num_predict": 5000}}, "5000 in the completion"),
    ("/api/chat", {"messages": USER, "options": {"temperature": 3}}, "temperature"),
    ("/api/chat", {"messages": USER, "options": {"temperature": "hot"}}, "temperature"),
    ("/api/chat", {"messages": USER, "options": {"top_k": True}}, "top_k"),
    ("/api/chat", {"messages": USER, "options": {"seed": 1e300}}, "seed"),
    ("/api/chat", {"messages": USER, "options": {"stop": [""]}}, "stop"),
    ("/api/chat", {"messages": USER, "options": {"mirostat": 2}}, "mirostat"),
    ("/api/chat", {"messages": USER, "options": {"tfs_z": 0.5}}, "tfs_z"),
    ("/api/chat", {"messages": USER, "options": {"typical_p": 0.5}}, "typical_p"),
    ("/api/chat", {"messages": USER, "options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}, "repeat_last_n"),
    ("/api/generate", {"prompt": "word " * 5000}, "maximum context length is 4096"),
    ("/api/show", {"model": ""}, "model"),
    ("/api/chat", {"model": None, "messages": USER}, "model"),
    ("/api/chat", {"model": "", "messages": USER}, "model"),
    ("/api/embed", {"input": "x"}, "does not support embeddings"),
    ("/api/embeddings", {"prompt": "x"}, "does not support embeddings"),
])  # fmt: skip
def test_refusals_name_what_is_wrong(client: httpx.Client, path: str, body: dict[str, Any], named: str) -> None:
    for stream in (True, False):
        answer = client.post(path, json={"model": "scripted", "stream": stream, **body})
        assert answer.status_code == 400, answer.text
        assert answer.json().keys() == {"error"}
        assert named in answer.json()["error"]


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/api/pull"), ("POST", "/api/push"), ("POST", "/api/create"), ("POST", "/api/copy"),
    ("DELETE", "/api/delete"), ("POST", "/api/blobs/sha256:00"),
])  # fmt: skip
def test_requests_change_no_models(client: httpx.Client, method: str, path: str) -> None:
    for content in (b'{"model": "scripted"}', b'{"model": "org/new"}', b"\xff not JSON", b""):
        answer = client.request(method, path, content=content)
        assert answer.status_code == 400
        assert f"{method} {path} is not supported" in answer.json()["error"]
    assert client.head("/api/blobs/sha256:00").status_code == 400


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/api/chat", 405), ("GET", "/api/nope", 404), ("POST", "/api/tags", 405), ("POST", "//api/nope", 404),
])  # fmt: skip
def test_routing_errors_are_ollamas(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, str(client.base_url).rstrip("/") + path)
    assert answer.status_code == status
    assert answer.json().keys() == {"error"}
    assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b"\xff", b'{"model": NaN}', b'{"model": 5}', b'{"model": "\\ud800"}']
)
def test_bad_bodies(client: httpx.Client, raw: bytes) -> None:
    for path in ("/api/chat", "/api/generate", "/api/show", "/api/embed"):
        answer = client.post(path, content=raw)
        assert answer.status_code == 400
        assert isinstance(answer.json()["error"], str)


FIELDS = [
    "model", "messages", "prompt", "system", "raw", "stream", "options", "format", "tools", "think", "keep_alive",
    "images", "template", "suffix", "context", "logprobs", "top_logprobs", "truncate", "shift", "name", "input",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 2, 5.5, 1e308, 10**30, "", "x", "scripted", "json", "5m", "\0", "龜🫠", [], {}, [1],
    ["a"], [[]], [None], {"a": 1}, USER, [{"role": "tool", "content": "x", "tool_name": "t"}], {"top_k": 1e300},
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, {"b": None}]}}}]}],
    {"seed": 1e20}, {"num_ctx": 1e300}, {"min_p": "x"}, {"stop": [1]},
    {"temperature": 0, "num_predict": 2, "stop": "a"},
]  # fmt: skip


def test_no_body_is_a_fault_of_ours(client: httpx.Client) -> None:
    rng = random.Random(3)
    seen = set()
    for _ in range(400):
        body: dict[str, Any] = {"model": "scripted", "prompt": "Hi", "messages": USER, "options": {"num_predict": 2}}
        body |= {field: rng.choice(VALUES) for field in rng.sample(FIELDS, rng.randint(0, 3))}
        raw = json.dumps(body).encode()
        if rng.random() < 0.2:
            place = rng.randrange(len(raw))
            raw = raw[:place] + bytes([rng.randrange(256)]) + raw[place + rng.randint(0, 3) :]
        answer = client.post(rng.choice(["/api/chat", "/api/generate", "/api/show", "/api/embed"]), content=raw)
        seen.add(answer.status_code)
        if answer.status_code != 200:
            assert answer.json().keys() == {"error"}
        else:
            assert '"error"' not in answer.text
    assert seen == {200, 400, 404}


def test_deeply_nested_arguments(client: httpx.Client) -> None:
    for depth in (50, 5_000, 100_000):
        nested = '{"a":' * depth + "1" + "}" * depth
        raw = (
            '{"model": "scripted", "stream": false, "options": {"num_predict": 1}, "messages": [{"role": "user"}, '
            '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ' + nested + "}}]}]}"
        )
        assert client.post("/api/chat", content=raw.encode()).status_code == (200 if depth == 50 else 400)
