"""/tokenize, /detokenize and the lists of models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from contract.conftest import Ask
from contract.requests import function, user


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello, world!",
        "naïve café",
        "🙂👩‍👩‍👧",
        "日本語テキスト",
        "\n\n\ttabs",
        "a" * 300,
        "<|im_start|>",
        "e\u0301",
    ],
)
def test_text_comes_back(http: httpx.Client, text: str) -> None:
    found = http.post("/tokenize", json={"prompt": text}).json()
    assert found["count"] == len(found["tokens"])
    assert http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}


def test_strings_of_tokens_join(http: httpx.Client) -> None:
    found = http.post("/tokenize", json={"prompt": "Hello, world!", "return_token_strs": True}).json()
    assert len(found["token_strs"]) == found["count"]


def test_tokenizer_is_described(http: httpx.Client, ids: Callable[[str], list[int]]) -> None:
    """What lm-eval asks for before it lets the server tokenise."""
    found = http.get("/tokenizer_info").json()
    assert len(ids(found["eos_token"])) == 1 and "im_start" in found["chat_template"]
    assert found["model_max_length"] == 8192


def test_context_is_told(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"prompt": "Hi"}).json()["max_model_len"] == 8192


def test_messages_count_as_in_a_chat(http: httpx.Client, chat: Ask) -> None:
    found = http.post("/tokenize", json={"messages": [user("Say hello.")]}).json()
    assert found["count"] == chat(max_tokens=1).usage.prompt_tokens


def test_generation_prompt_may_be_left_out(http: httpx.Client) -> None:
    counts = [
        http.post("/tokenize", json={"messages": [user("Hi")], "add_generation_prompt": add}).json()["count"]
        for add in (True, False)
    ]
    assert counts[0] > counts[1]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/tokenize", {"prompt": "a", "messages": [user("b")]}),
        ("/tokenize", {"messages": []}), ("/tokenize", {"messages": [user("Hi")], "tools": [function("bad name")]}),
        ("/detokenize", {}), ("/detokenize", {"tokens": [10**9]}), ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}), ("/detokenize", {"tokens": [1.5]}),
    ],
    ids=str,
)  # fmt: skip
def test_refused(http: httpx.Client, path: str, body: Any) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_unknown_model(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"model": "absent", "prompt": "Hi"}).status_code == 404


def test_list_of_models(client: openai.OpenAI, model: str) -> None:
    (listed,) = client.models.list()
    assert (listed.id, listed.object, listed.owned_by) == (model, "model", "wllm")
    extra: Any = listed.model_extra
    assert extra["max_model_len"] == 8192


def test_one_model(client: openai.OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as absent:
        client.models.retrieve("absent/model")
    assert absent.value.code == "model_not_found"


@pytest.mark.parametrize("path", ["/models", "/v1//models"])
def test_paths_that_clients_make_of_it(http: httpx.Client, path: str, model: str) -> None:
    answer = http.get(path, follow_redirects=True)
    assert answer.status_code == 200 and answer.json()["data"][0]["id"] == model


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/metrics", "/openapi.json"])
def test_routes_of_the_server(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200
