"""What Ollama's API refuses, and how: a 400 or 404 with a text, whatever the body, and never a fault of ours."""

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
