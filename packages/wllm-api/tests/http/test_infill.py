"""`suffix` and `best_of` of /v1/completions."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_client import ServerClient

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")


@pytest.fixture(scope="module")
def coder(start_server: Any) -> Iterator[ServerClient]:
    """A server whose model can fill in the middle; what it writes ends in one of the model's tokens for that."""
    with start_server(reply="a + b<|fim_pad|> and more", more_special_tokens=MARKS) as client:
        yield client


def post(client: ServerClient, **fields: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "x = ", "temperature": 0, **fields})


def complete(client: ServerClient, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.ask("/v1/completions", **{"prompt": "x = ", "temperature": 0, **fields})
    return answer


def test_suffix_is_part_of_the_prompt(coder: ServerClient) -> None:
    choice = complete(coder, suffix="\nprint(x)", return_token_ids=True)["choices"][0]
    assert coder.text_of(choice["prompt_token_ids"]) == "<|fim_prefix|>x = <|fim_suffix|>\nprint(x)<|fim_middle|>"
    assert choice["text"] == "a + b"
    assert choice["finish_reason"] == "stop"


def test_suffix_with_ids_and_several_prompts(coder: ServerClient) -> None:
    ids = coder.post("/tokenize", json={"prompt": "x = "}).json()["tokens"]
    choices = complete(coder, prompt=[ids, ids], suffix="\nprint(x)", return_token_ids=True)["choices"]
    text = complete(coder, suffix="\nprint(x)", return_token_ids=True)["choices"][0]
    assert [choice["prompt_token_ids"] for choice in choices] == [text["prompt_token_ids"]] * 2
    assert post(coder, prompt=[[9999]], suffix="x").json()["error"]["param"] == "prompt"


def test_other_end_tokens_count_only_while_filling_in(coder: ServerClient) -> None:
    for fields in ({}, {"suffix": "x", "ignore_eos": True, "max_tokens": 12}):
        assert complete(coder, **fields)["choices"][0]["text"].startswith("a + b and more"[:12])


def test_best_of(client: ServerClient) -> None:
    fields: dict[str, Any] = {"temperature": 1, "seed": 5, "max_tokens": 6, "ignore_eos": True}
    every = complete(client, n=4, **fields)["choices"]
    answer = complete(client, prompt=["x = ", "y = "], n=2, best_of=4, **fields)
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert {choice["text"] for choice in choices[:2]} <= {choice["text"] for choice in every}
    assert all(choice["logprobs"] is None for choice in choices)
    # All that was generated is counted.
    assert answer["usage"]["completion_tokens"] == 2 * 4 * 6
    refusal = post(client, prompt=["x"] * 3, best_of=128).json()["error"]
    assert "384 answers" in refusal["message"]


def test_model_without_such_tokens(client: ServerClient) -> None:
    answer = post(client, suffix="x")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert "no tokens for filling in" in error["message"]
    for nothing in ("", None):
        assert complete(client, suffix=nothing) | {"id": 0, "created": 0} == complete(client) | {"id": 0, "created": 0}
