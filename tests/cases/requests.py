"""What the cases send and read: plain HTTP with strictly parsed JSON."""

from __future__ import annotations

import json
from typing import Any

import httpx

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]


def ask(client: httpx.Client, path: str, **body: Any) -> Any:
    """The answer, which must be a good one."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return strict(answer.text)


def refusal(client: httpx.Client, path: str, **body: Any) -> Any:
    """The error of a request that must be refused."""
    return error_of(client.post(path, json=body))


def error_of(answer: httpx.Response) -> Any:
    """The error object of a 400, in OpenAI's form."""
    assert answer.status_code == 400, f"{answer.status_code}: {answer.text}"
    error = strict(answer.text)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and "Traceback" not in error["message"]
    return error


def stream(client: httpx.Client, path: str, **body: Any) -> list[Any]:
    """The chunks of a stream that ends as it should."""
    with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]" and data.count("[DONE]") == 1
    return [strict(piece) for piece in data[:-1]]


def streamed_text(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a stream."""
    pieces = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                pieces.append(piece)
    return "".join(pieces)


def text_of(answer: Any, index: int = 0) -> str:
    """The text of one choice of a whole answer."""
    choice = answer["choices"][index]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def reasons(chunks: list[Any]) -> dict[int, str]:
    """The finish reason of each choice of a stream; each comes once."""
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["finish_reason"] is not None:
                assert choice["index"] not in found
                found[choice["index"]] = choice["finish_reason"]
    return found


def without_cache(usage: dict[str, Any]) -> dict[str, Any]:
    """Usage less what an earlier, equal request changes."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}


def strict(text: str) -> Any:
    """The value of JSON as the standard has it."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")
