"""/v1/completions and /tokenize: forms of prompts, echo, scoring, several prompts."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest


def complete(client: httpx.Client, prompt: object = "Hello", **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def ids_of(client: httpx.Client, text: str) -> list[int]:
    tokens: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return tokens


def test_shape(client: httpx.Client) -> None:
    answer = complete(client)
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    (choice,) = answer["choices"]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
    assert answer["usage"]["completion_tokens"] == 16


def test_forms_of_a_prompt_agree(client: httpx.Client) -> None:
    ids = ids_of(client, "Hello there")
    one = texts(complete(client, "Hello there"))
    for prompt in (["Hello there"], ids, [ids]):
        assert texts(complete(client, prompt)) == one
    assert texts(complete(client, ["Hello there", "Bye"])) == [*one, *texts(complete(client, "Bye"))]


def test_choices_are_numbered_over_prompts_and_samples(client: httpx.Client) -> None:
    """R06."""
    fields = {"max_tokens": 8, "ignore_eos": True, "temperature": 1, "seed": 5, "n": 2}
    answer = complete(client, ["Hello", "Hello there"], **fields)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    alone = [text for prompt in ("Hello", "Hello there") for text in texts(complete(client, prompt, **fields))]
    assert texts(answer) == alone
    usage = answer["usage"]
    assert usage["completion_tokens"] == 32
    assert usage["prompt_tokens"] == len(ids_of(client, "Hello")) + len(ids_of(client, "Hello there"))
    assert usage["total_tokens"] == usage["prompt_tokens"] + 32


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_scoring_a_prompt(client: httpx.Client, max_tokens: int) -> None:
    """R09: what evaluation tools send."""
    text = "Your answer: Yes"
    answer = complete(client, text, echo=True, logprobs=1, max_tokens=max_tokens)
    (choice,) = answer["choices"]
    assert choice["text"][: len(text)] == text
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == max_tokens
    count = len(ids_of(client, text)) + max_tokens
    logprobs = choice["logprobs"]
    assert {len(logprobs[name]) for name in logprobs} == {count}
    assert logprobs["token_logprobs"][0] is None
    assert None not in logprobs["token_logprobs"][1:]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)


def test_scoring_several_prompts(client: httpx.Client) -> None:
    prompts = [ids_of(client, "one two"), ids_of(client, "Three")]
    answer = complete(client, prompts, echo=True, logprobs=0, max_tokens=0)
    assert texts(answer) == ["one two", "Three"]
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [len(ids) for ids in prompts]


def test_no_tokens_without_echo(client: httpx.Client) -> None:
    answer = complete(client, max_tokens=0)
    assert texts(answer) == [""]
    assert answer["choices"][0]["finish_reason"] == "length"


def test_echo_in_front_of_each_sample(client: httpx.Client) -> None:
    answer = complete(client, "Hé 🫠", echo=True, n=2, temperature=1, seed=3, logprobs=2, max_tokens=4)
    for choice in answer["choices"]:
        assert choice["text"].startswith("Hé 🫠")
        assert len(choice["logprobs"]["tokens"]) == len(ids_of(client, "Hé 🫠")) + 4
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert offsets[-1] < len(choice["text"])


def test_number_of_top_logprobs(client: httpx.Client) -> None:
    for count in (0, 1, 5):
        logprobs = complete(client, logprobs=count, max_tokens=3)["choices"][0]["logprobs"]
        assert [len(top) for top in logprobs["top_logprobs"]] == [max(count, 1)] * 3
        for token, value, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        ):
            assert top[token] == value


def test_infinite_logprobs_are_finite_json(start_server: Any) -> None:
    """R10."""
    with start_server(infinite_logprobs=True) as client:
        for stream in (False, True):
            body = {"prompt": "Answer:", "max_tokens": 3, "logprobs": 5, "stream": stream, "echo": True}
            text = client.post("/v1/completions", json=body).raise_for_status().text
            assert "-9999.0" in text
            assert "Infinity" not in text
        body = {"messages": [{"role": "user", "content": "Yes?"}], "logprobs": True, "top_logprobs": 5, "max_tokens": 2}
        rows = client.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
        assert [row["top_logprobs"][-1]["logprob"] for row in rows] == [-9999.0, -9999.0]


@pytest.mark.parametrize("prompt", ["", [""], ["", "Hello"]])
def test_empty_text_starts_from_a_special_token(client: httpx.Client, prompt: object) -> None:
    """R13."""
    assert complete(client, prompt, max_tokens=4)["usage"]["prompt_tokens"] >= 1


@pytest.mark.parametrize("prompt", [[], [[]], [512], [-1], [[1], [99999]], [1.5], ["a", 1], None, 5])
def test_bad_prompts(client: httpx.Client, prompt: object) -> None:
    answer = client.post("/v1/completions", json={"prompt": prompt})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


def test_padded_prompt_id(client: httpx.Client) -> None:
    """R41."""
    assert complete(client, [511, 5], max_tokens=4, echo=True)["usage"]["prompt_tokens"] == 2


def test_longest_prompt(client: httpx.Client) -> None:
    context = 4096
    assert complete(client, [5] * (context - 1), max_tokens=1)["usage"]["completion_tokens"] == 1
    assert complete(client, [5] * context, max_tokens=0, echo=True)["usage"]["prompt_tokens"] == context
    for length, max_tokens in ((context, 1), (context, -1), (context + 1, 0), (context - 1, 2)):
        answer = client.post("/v1/completions", json={"prompt": [5] * length, "max_tokens": max_tokens})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert str(length) in answer.json()["error"]["message"]


@pytest.mark.parametrize("fields", [
    {"temperature": 0.0001}, {"top_p": 0.0001}, {"temperature": 1e-30}, {"top_p": 0}, {"top_k": 1}, {"top_k": 10**9},
    {"top_k": -1}, {"top_k": 0}, {"min_p": 1.0}, {"temperature": 1e-30, "top_p": 0, "top_k": 1, "min_p": 1.0},
])  # fmt: skip
def test_extreme_sampling_fields(client: httpx.Client, fields: dict[str, Any]) -> None:
    """R15: here that they arrive; what they do is the engine's matter."""
    complete(client, **fields)


@pytest.mark.parametrize("fields", [
    {"suffix": "x"}, {"best_of": 3}, {"best_of": 0}, {"logprobs": 21}, {"n": 0}, {"min_tokens": 20},
])  # fmt: skip
def test_refusals_name_the_field(client: httpx.Client, fields: dict[str, Any]) -> None:
    answer = client.post("/v1/completions", json={"prompt": "x", "stream": True, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in fields


def test_too_many_samples(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": ["x"] * 17, "n": 128})
    assert answer.status_code == 400
    assert "2176 answers" in answer.json()["error"]["message"]


def test_bad_words_and_stop_ids(client: httpx.Client) -> None:
    assert complete(client, bad_words=["foo"], stop_token_ids=[7], max_tokens=4)["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("text", ["", "  two spaces", "ÄÖ 龜 🫠", "\n\n", "<|im_end|>", "x" * 5000])
def test_tokenize_and_back(client: httpx.Client, text: str) -> None:
    answer = client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 4096
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}


@pytest.mark.parametrize(("path", "body"), [
    ("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}),
    ("/tokenize", {"prompt": 3}), ("/detokenize", {"tokens": [512]}), ("/detokenize", {"tokens": [-1]}),
    ("/detokenize", {}), ("/detokenize", {"tokens": "abc"}), ("/tokenize", {"prompt": "a", "tools": [{"a": 1}]}),
])  # fmt: skip
def test_bad_token_requests(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/json", "application/x-www-form-urlencoded"])
def test_content_type_does_not_matter(client: httpx.Client, content_type: str) -> None:
    """R30."""
    raw = '\ufeff{"prompt": "Hello", "max_tokens": 2}'.encode()
    answer = client.post("/v1/completions", content=raw, headers={"Content-Type": content_type})
    assert answer.status_code == 200


def test_body_over_the_limit(start_server: Any) -> None:
    from wllm_api.settings import Limits

    def pieces() -> Iterator[bytes]:
        for _ in range(4):
            yield b"x" * 1000

    with start_server(limits=Limits(max_body_bytes=2000)) as client:
        for content in (b"x" * 2001, pieces()):
            answer = client.post("/v1/completions", content=content)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "request_too_large"
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
