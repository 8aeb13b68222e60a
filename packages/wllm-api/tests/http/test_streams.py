"""Streams: the same answer as without one, in well-formed events, to a proper end."""

from typing import Any

import httpx
import pytest
from server_client import ALPHABET

from wllm_api.settings import Limits
from wllm_api.testing import sse_data

USER = [{"role": "user", "content": "Name three colours. 🫠"}]


def streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        *chunks, last = sse_data(answer.iter_lines())
    assert last is None, "the stream ends with [DONE]"
    assert None not in chunks
    return chunks


def rebuilt_chat(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices that chat chunks make, with the rules of the protocol checked on the way."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk.keys() >= {"id", "created", "model", "choices"}
        for choice in chunk["choices"]:
            assert choice.keys() >= {"index", "delta", "logprobs", "finish_reason"}
            built = choices.get(choice["index"])
            if built is None:
                assert choice["delta"] == {"role": "assistant", "content": ""}
                choices[choice["index"]] = {"text": "", "rows": [], "finish_reason": None}
                continue
            assert "role" not in choice["delta"], "the role comes once"
            assert built["finish_reason"] is None, "nothing after the end"
            assert "\ufffd" not in choice["delta"].get("content", "")
            built["text"] += choice["delta"].get("content", "")
            built["rows"] += choice["logprobs"]["content"] if choice["logprobs"] else []
            built["finish_reason"] = choice["finish_reason"]
    return choices


def whole_chat(answer: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {
        choice["index"]: {
            "text": choice["message"]["content"],
            "rows": choice["logprobs"]["content"] if choice["logprobs"] else [],
            "finish_reason": choice["finish_reason"],
        }
        for choice in answer["choices"]
    }


def rebuilt_completion(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            built = choices.setdefault(choice["index"], {"text": "", "logprobs": {}, "finish_reason": None})
            assert built["finish_reason"] is None
            built["text"] += choice["text"]
            for name, values in (choice["logprobs"] or {}).items():
                built["logprobs"].setdefault(name, []).extend(values)
            built["finish_reason"] = choice["finish_reason"]
    return choices


CHAT_FIELDS: list[dict[str, Any]] = [
    {}, {"max_tokens": 3}, {"n": 3, "seed": 7, "temperature": 1.0, "max_tokens": 12},
    {"logprobs": True, "top_logprobs": 2},
    {"stop": ["\n"]}, {"stop": "e"}, {"stop": ["colour", "read"], "n": 2}, {"logprobs": True, "stop": " tokens"},
    {"stop": " tokens", "include_stop_str_in_output": True}, {"ignore_eos": True, "max_tokens": 70},
]  # fmt: skip


@pytest.mark.parametrize("fields", CHAT_FIELDS)
def test_streamed_chat_is_the_whole_chat(client: httpx.Client, fields: dict[str, Any]) -> None:
    """R05, R07."""
    body = {"messages": USER, "temperature": 0, **fields}
    whole = client.post("/v1/chat/completions", json=body).json()
    chunks = streamed(client, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert rebuilt_chat(chunks) == whole_chat(whole)
    *others, last = chunks
    assert last["choices"] == []
    assert without_cache(last["usage"]) == without_cache(whole["usage"])
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in others)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


@pytest.mark.parametrize("fields", [
    {}, {"logprobs": 2}, {"logprobs": 0, "n": 3, "seed": 1, "temperature": 1}, {"echo": True},
    {"echo": True, "logprobs": 1, "n": 2}, {"echo": True, "logprobs": 1, "max_tokens": 0}, {"max_tokens": 0},
    {"prompt": ["One", "Two 🫠"], "n": 2, "logprobs": 1, "echo": True},
    {"stop": ["ead", " 7"], "logprobs": 1, "max_tokens": 60},
])  # fmt: skip
def test_streamed_completion_is_the_whole_completion(client: httpx.Client, fields: dict[str, Any]) -> None:
    body = {"prompt": "Hé 🫠", "temperature": 0, **fields}
    whole = client.post("/v1/completions", json=body).json()
    chunks = streamed(client, "/v1/completions", body)
    assert rebuilt_completion(chunks) == {
        choice["index"]: {
            "text": choice["text"], "logprobs": choice["logprobs"] or {}, "finish_reason": choice["finish_reason"]
        }
        for choice in whole["choices"]
    }  # fmt: skip


@pytest.mark.parametrize("max_tokens", range(28, 64, 3))
def test_characters_stay_whole(alphabet: httpx.Client, max_tokens: int) -> None:
    """R01: wherever the limit cuts."""
    body = {"prompt": "Go", "max_tokens": max_tokens}
    text = "".join(chunk["choices"][0]["text"] for chunk in streamed(alphabet, "/v1/completions", body))
    assert ALPHABET.startswith(text)
    assert alphabet.post("/v1/completions", json=body).json()["choices"][0]["text"] == text


@pytest.mark.parametrize(("stop", "before"), [
    (ALPHABET[5:14], ALPHABET[:5]), ([ALPHABET[5:14]], ALPHABET[:5]), (["the English", "the Eng"], ALPHABET[:8]),
    (["🫠龜"], ALPHABET.partition("🫠")[0]), (["nowhere"], ALPHABET), (["so on.!"], ALPHABET), (["Here"], ""),
])  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_stop_strings(alphabet: httpx.Client, path: str, stop: object, before: str) -> None:
    """R02."""
    body = {"prompt": "Go", "messages": USER, "max_tokens": 400, "stop": stop}
    del body["messages" if path == "/v1/completions" else "prompt"]
    chunks = streamed(alphabet, path, body)
    pieces = [
        choice.get("text") or choice.get("delta", {}).get("content", "") for c in chunks for choice in c["choices"]
    ]
    assert "".join(pieces) == before
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    (choice,) = alphabet.post(path, json=body).json()["choices"]
    assert (choice["text"] if "text" in choice else choice["message"]["content"]) == before


def test_held_back_text_is_released_at_the_limit(alphabet: httpx.Client) -> None:
    body = {"prompt": "Go", "max_tokens": 4, "stop": ALPHABET[:40]}
    text = "".join(chunk["choices"][0]["text"] for chunk in streamed(alphabet, "/v1/completions", body))
    assert text
    assert ALPHABET.startswith(text)


@pytest.mark.parametrize("fields", [{}, {"n": 2, "seed": 3, "temperature": 1}, {"stop": "add"}])
def test_continuous_usage(client: httpx.Client, fields: dict[str, Any]) -> None:
    """R07."""
    body = {"messages": USER, "temperature": 0, "max_tokens": 20, **fields}
    options = {"continuous_usage_stats": True, "include_usage": True}
    chunks = streamed(client, "/v1/chat/completions", {**body, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    whole = client.post("/v1/chat/completions", json=body).json()
    assert without_cache(chunks[-1]["usage"]) == without_cache(whole["usage"])


def test_no_usage_unasked(client: httpx.Client) -> None:
    chunks = streamed(client, "/v1/chat/completions", {"messages": USER, "max_tokens": 2})
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_token_ids_in_a_stream(client: httpx.Client) -> None:
    body = {"messages": USER, "temperature": 0, "return_token_ids": True}
    whole = client.post("/v1/chat/completions", json=body).json()
    chunks = streamed(client, "/v1/chat/completions", body)
    assert chunks[0]["choices"][0]["prompt_token_ids"] == whole["prompt_token_ids"]
    ids = [i for chunk in chunks for choice in chunk["choices"] for i in choice.get("token_ids") or []]
    assert ids == whole["choices"][0]["token_ids"]


@pytest.mark.parametrize("fields", [{"n": 0}, {"n": -1}, {"n": 1_000_000}, {"max_tokens": 10**6}, {"model": "x"}])
def test_refusals_are_no_streams(client: httpx.Client, fields: dict[str, Any]) -> None:
    """R32."""
    answer = client.post("/v1/chat/completions", json={"messages": USER, "stream": True, **fields})
    assert answer.status_code in (400, 404)
    assert answer.headers["content-type"].startswith("application/json")


def test_pings_while_nothing_comes(start_server: Any) -> None:
    with start_server(limits=Limits(ping_interval_s=0.1), step_s=2.6) as client:
        body = {"prompt": "Hi", "max_tokens": 1, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = list(answer.iter_lines())
    assert lines.count(": ping") >= 2
    assert [line[:6] for line in lines if line and not line.startswith(":")] == ["data: ", "data: "]


def without_cache(usage: dict[str, Any]) -> dict[str, Any]:
    """Usage less what an earlier, equal request changes."""
    return {name: value for name, value in usage.items() if name != "prompt_tokens_details"}
