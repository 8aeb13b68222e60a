"""`suffix` and `best_of` of /v1/completions."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")


@pytest.fixture(scope="module")
def coder(start_server: Any) -> Iterator[httpx.Client]:
    """A server whose model can fill in the middle; what it writes ends in one of the model's tokens for that."""
    with start_server(reply="a + b<|fim_pad|> and more", more_special_tokens=MARKS) as client:
        yield client


def post(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "x = ", "temperature": 0, **fields})


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = post(client, **fields).raise_for_status().json()
    return answer


def test_suffix_is_part_of_the_prompt(coder: httpx.Client) -> None:
    choice = complete(coder, suffix="\nprint(x)", return_token_ids=True)["choices"][0]
    prompt = coder.post("/detokenize", json={"tokens": choice["prompt_token_ids"]}).json()["prompt"]
    assert prompt == "<|fim_prefix|>x = <|fim_suffix|>\nprint(x)<|fim_middle|>"
    assert choice["text"] == "a + b"
    assert choice["finish_reason"] == "stop"


def test_suffix_with_ids_and_several_prompts(coder: httpx.Client) -> None:
    ids = coder.post("/tokenize", json={"prompt": "x = "}).json()["tokens"]
    choices = complete(coder, prompt=[ids, ids], suffix="\nprint(x)", return_token_ids=True)["choices"]
    text = complete(coder, suffix="\nprint(x)", return_token_ids=True)["choices"][0]
    assert [choice["prompt_token_ids"] for choice in choices] == [text["prompt_token_ids"]] * 2
    assert post(coder, prompt=[[9999]], suffix="x").json()["error"]["param"] == "prompt"


def test_other_end_tokens_count_only_while_filling_in(coder: httpx.Client) -> None:
    for fields in ({}, {"suffix": "x", "ignore_eos": True, "max_tokens": 12}):
        assert complete(coder, **fields)["choices"][0]["text"].startswith("a + b and more"[:12])


def test_best_of(client: httpx.Client) -> None:
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


def test_model_without_such_tokens(client: httpx.Client) -> None:
    answer = post(client, suffix="x")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    assert "no tokens for filling in" in error["message"]
    for nothing in ("", None):
        assert complete(client, suffix=nothing) | {"id": 0, "created": 0} == complete(client) | {"id": 0, "created": 0}
