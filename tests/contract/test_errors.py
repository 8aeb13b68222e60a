"""Refusals by the class that OpenAI's package raises, with the field that they name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from contract.conftest import Ask
from contract.requests import user
from server.running_server import RunningServer

CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "nobody", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"max_completion_tokens": -2}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": 3}, "stop"),
    ({"logprobs": "yes"}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"reasoning_effort": 3}, "reasoning_effort"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
]  # fmt: skip
SHARED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stop_token_ids": [999999]}, "stop_token_ids"),
    ({"allowed_token_ids": [999999]}, "allowed_token_ids"),
    ({"bad_words": "a"}, "bad_words"),
    ({"stream": "yes"}, "stream"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"logits_processors": ["x"]}, "logits_processors"),
]  # fmt: skip
COMPLETIONS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", [1]]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [999999]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"echo": "yes"}, "echo"),
    ({"suffix": "end"}, "suffix"),
]


def check(refused: pytest.ExceptionInfo[openai.BadRequestError], param: str) -> None:
    error = refused.value
    assert error.status_code == 400 and error.type == "invalid_request_error"
    assert (error.param or "").startswith(param)
    assert error.body is not None and "Traceback" not in str(error.body)
    assert error.message and error.request_id


@pytest.mark.parametrize(("fields", "param"), [*CHAT, *SHARED], ids=str)
def test_chat_names_the_field(chat: Ask, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(**fields)
    check(refused, param)


@pytest.mark.parametrize(("fields", "param"), [*COMPLETIONS, *SHARED], ids=str)
def test_completions_name_the_field(complete: Ask, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(**fields)
    check(refused, param)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("stream", [False, True])
def test_refused_streams_are_no_streams(http: httpx.Client, path: str, stream: bool) -> None:
    answer = http.post(path, json={"stream": stream})
    assert answer.status_code == 400 and answer.headers["content-type"].startswith("application/json")
    assert answer.json()["error"]["param"] in ("messages", "prompt", "input")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"messages": NaN}', b"[" * 100_000], ids=repr)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat"]
)
def test_bodies_that_are_no_requests(http: httpx.Client, path: str, raw: bytes) -> None:
    answer = http.post(path, content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]


def test_unknown_model(chat: Ask, complete: Ask, respond: Ask) -> None:
    for ask in (chat, complete, respond):
        with pytest.raises(openai.NotFoundError) as refused:
            ask(model="absent")
        assert refused.value.code == "model_not_found" and refused.value.param == "model"


def test_unknown_route(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.images.generate(prompt="A cat")
    assert refused.value.body is not None


def test_wrong_method(http: httpx.Client) -> None:
    answer = http.get("/v1/chat/completions")
    assert answer.status_code == 405 and "POST" in answer.headers["allow"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("ask_for", ["prompt", "answer"])
def test_context_overflow_in_the_words_that_clients_know(chat: Ask, ask_for: str) -> None:
    fields: Any = {"content": "word " * 9000} if ask_for == "prompt" else {"max_tokens": 9000}
    with pytest.raises(openai.BadRequestError, match="maximum context length is 8192 tokens") as refused:
        chat(**fields)
    assert refused.value.code == "context_length_exceeded"


def test_body_over_the_limit(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", content=b" " * (33 * 2**20))
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}], ids=str)
def test_pages_of_others(client: openai.OpenAI, header: dict[str, str]) -> None:
    with pytest.raises(openai.PermissionDeniedError):
        client.with_options(default_headers=header).models.list()


def test_page_of_this_machine(client: openai.OpenAI) -> None:
    raw = client.models.with_raw_response.list(extra_headers={"Origin": "http://localhost:3000"})
    assert raw.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_refusals_are_no_answers(http: httpx.Client, server: RunningServer) -> None:
    before = server.metric("generation_tokens_total")
    http.post("/v1/chat/completions", json={"messages": [user("Hi")], "temperature": 9})
    assert server.metric("generation_tokens_total") == before


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with keys; the model is not needed to refuse."""
    with RunningServer(tmp_path_factory.mktemp("guarded"), "--api-key", "first", "--api-key", "second") as running:
        yield running.wait_ready()


@pytest.mark.parametrize("key", ["wrong", "firs", "firstx"])
def test_wrong_key(guarded: RunningServer, key: str) -> None:
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            client.models.list()
    assert refused.value.code == "invalid_api_key"


@pytest.mark.parametrize("key", ["first", "second"])
def test_right_key(guarded: RunningServer, key: str) -> None:
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=0) as client:
        assert len(list(client.models.list())) == 1


def test_keys_of_the_other_packages(guarded: RunningServer) -> None:
    for key in ({"api_key": "first"}, {"auth_token": "second"}):
        with anthropic.Anthropic(base_url=guarded.url, max_retries=0, **key) as claude:
            assert list(claude.models.list())
    with anthropic.Anthropic(base_url=guarded.url, api_key="no", max_retries=0) as claude:
        with pytest.raises(anthropic.AuthenticationError):
            claude.models.list()
    client = ollama.Client(host=guarded.url, headers={"Authorization": "Bearer first"})
    assert client.list().models
    client.close()
    client = ollama.Client(host=guarded.url)
    with pytest.raises(ollama.ResponseError) as refused:
        client.list()
    client.close()
    assert refused.value.status_code == 401


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/metrics", "/version", "/openapi.json", "/api/tags"])
def test_nothing_without_a_key(guarded: RunningServer, path: str) -> None:
    answer = httpx.get(guarded.url + path)
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert "error" in json.loads(answer.text)


def test_health_needs_no_key(guarded: RunningServer) -> None:
    assert httpx.get(f"{guarded.url}/health").status_code == 200
