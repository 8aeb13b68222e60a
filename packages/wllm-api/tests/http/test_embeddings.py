"""POST /v1/embeddings over HTTP, by hand and with the openai package."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
import tokenizers

from wllm_api.engine.scripted_model import SPECIAL_TOKENS, build_tokenizer, describe
from wllm_api.http_errors import InvalidRequest
from wllm_api.inputs import pooled_inputs
from wllm_api.model import ServedModel
from wllm_api.schemas.embeddings import PooledFields
from wllm_api.settings import Limits
from wllm_api.testing import wait_until

TEXTS = ["the cat and the dog", "it was in there", "Ünïcode 🫠", "x"]


def embed(client: httpx.Client, inputs: object, **fields: Any) -> list[list[float]]:
    answer = client.post("/v1/embeddings", json={"input": inputs, **fields})
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return [entry["embedding"] for entry in data]


def refused(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/embeddings", json=fields)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def tokens(client: httpx.Client, text: str) -> list[int]:
    ids: list[int] = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
    return ids


def test_openai_package(embedder: httpx.Client) -> None:
    with embedder.openai_sdk() as sdk:
        answer = sdk.embeddings.create(model="scripted", input=TEXTS)  # asks for base64 by itself
        plain = sdk.embeddings.create(model="scripted", input=TEXTS, encoding_format="float")
    assert (answer.object, answer.model) == ("list", "scripted")
    assert [one.index for one in answer.data] == [0, 1, 2, 3]
    for one, other in zip(answer.data, plain.data, strict=True):
        assert one.object == "embedding"
        assert one.embedding == pytest.approx(other.embedding, abs=1e-7)
        assert math.hypot(*one.embedding) == pytest.approx(1, abs=1e-6)
    count = sum(len(tokens(embedder, text)) for text in TEXTS)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (count, count)


def test_base64_is_float32_in_little_endian(embedder: httpx.Client) -> None:
    (text,) = embed(embedder, "the cat", encoding_format="base64")
    (numbers,) = embed(embedder, "the cat")
    assert list(struct.unpack("<10f", base64.b64decode(str(text)))) == numbers


def test_token_ids_are_as_good_as_their_text(embedder: httpx.Client) -> None:
    ids = [tokens(embedder, text) for text in TEXTS]
    assert embed(embedder, ids) == embed(embedder, TEXTS)
    assert embed(embedder, ids[0]) == embed(embedder, TEXTS[0]) == embed(embedder, TEXTS)[:1]


def test_many_texts_keep_their_order(embedder: httpx.Client) -> None:
    texts = [f"text number {number} {'and ' * (number % 20)}" for number in range(500)]
    vectors = embed(embedder, texts)
    assert len(vectors) == 500
    for number in (0, 19, 333, 499):
        assert [vectors[number]] == embed(embedder, texts[number])


def test_unit_length_can_be_switched_off(embedder: httpx.Client) -> None:
    (plain,) = embed(embedder, "the cat and the dog", normalize=False)
    assert sum(plain) == len(tokens(embedder, "the cat and the dog"))


def test_dimensions(start_server: Callable[..., Any], embedder: httpx.Client) -> None:
    assert len(embed(embedder, "x", dimensions=10)[0]) == 10
    error = refused(embedder, input="x", dimensions=4)
    assert error["param"] == "dimensions" and "10 numbers" in error["message"]
    with start_server(task="embed", matryoshka=True) as server:
        (short,), (whole,) = embed(server, "the cat", dimensions=4), embed(server, "the cat", normalize=False)
        assert short == pytest.approx([value / math.hypot(*whole[:4]) for value in whole[:4]], abs=1e-6)
        error = refused(server, input="x", dimensions=5)
        assert error["param"] == "dimensions" and "4, 8" in error["message"]


LONG = "the cat " * 80


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ["x", LONG]}, "input", "maximum context length is 64 tokens. However, your input (number 1)"),
        ({"input": [[5] * 65]}, "input", "resulted in 65 tokens"),
        ({"input": ""}, "input", "is empty"),
        ({"input": []}, "input", "must be a string"),
        ({"input": [[1], []]}, "input", "empty list of token ids"),
        ({"input": ["a", 1]}, "input", "mixes kinds"),
        ({"input": [1.5]}, "input", "mixes kinds"),
        ({"input": [512]}, "input", "token id 512"),
        ({"input": [-1]}, "input", "token id -1"),
        ({"input": ["x"] * 2049}, "input", "2049 entries; the limit is 2048"),
        ({}, "input", "required"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", "base64"),
        ({"input": "x", "dimensions": 0}, "dimensions", "1"),
        ({"input": "x", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "1 to 64"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "1 to 64"),
        ({"input": "x", "messages": [{"role": "user", "content": "x"}]}, "messages", "not supported"),
        ({"input": "x", "embed_dtype": "float16"}, "embed_dtype", "not supported"),
        ({"input": "x", "priority": 3}, "priority", "not supported"),
    ],
)
def test_refusals_name_the_field(embedder: httpx.Client, fields: dict[str, Any], param: str, words: str) -> None:
    error = refused(embedder, **fields)
    assert error["param"] == param
    assert words in error["message"]
    assert len(embed(embedder, "still there")) == 1


def test_too_long_has_the_code_that_clients_match(embedder: httpx.Client) -> None:
    assert refused(embedder, input=LONG)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("asked", "kept"), [(-1, 64), (5, 5)])
def test_a_text_may_be_cut(embedder: httpx.Client, asked: int, kept: int) -> None:
    ids = tokens(embedder, LONG)
    body = {"input": LONG, "truncate_prompt_tokens": asked}
    answer = embedder.post("/v1/embeddings", json=body).json()
    assert answer["usage"]["prompt_tokens"] == kept
    assert [answer["data"][0]["embedding"]] == embed(embedder, ids[:kept]) == embed(embedder, ids, **{
        "truncate_prompt_tokens": asked
    })  # fmt: skip


@pytest.mark.parametrize(("limit", "fits"), [(1, False), (2, True), (3, True)])
def test_a_cut_that_leaves_no_room_is_refused(limit: int, fits: bool) -> None:
    tokenizer = build_tokenizer()
    begin, end = SPECIAL_TOKENS[1:]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(begin, 1), (end, 2)]
    )
    model = ServedModel(describe(tokenizer, max_model_len=64, num_blocks=0, chat_template=None))
    work = pooled_inputs(["the cat"], model, PooledFields(truncate_prompt_tokens=limit), param="input")
    if fits:
        (text,) = asyncio.run(work)
        assert len(text.token_ids) == limit
        return
    with pytest.raises(InvalidRequest, match="no room for text") as refusal:
        asyncio.run(work)
    assert refusal.value.param == "truncate_prompt_tokens"


def test_without_a_tokenizer_token_ids_do() -> None:
    info = describe(build_tokenizer(), max_model_len=64, num_blocks=0, chat_template=None)
    model = ServedModel(replace(info, tokenizer_json=None, task="embed"))
    (text,) = asyncio.run(pooled_inputs([[5, 6]], model, PooledFields(), param="input"))
    assert text.token_ids == [5, 6]
    with pytest.raises(InvalidRequest, match="Send token ids to /v1/embeddings"):
        asyncio.run(pooled_inputs(["the cat"], model, PooledFields(), param="input"))


def test_optional_fields_may_be_null(embedder: httpx.Client) -> None:
    names = ("model", "encoding_format", "dimensions", "normalize", "truncate_prompt_tokens", "user")
    assert embed(embedder, "x", **dict.fromkeys(names)) == embed(embedder, "x", user="me")


def test_unknown_names_of_models(embedder: httpx.Client) -> None:
    answer = embedder.post("/v1/embeddings", json={"input": "x", "model": "other"})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


def test_a_large_request_holds_up_nobody(start_server: Callable[..., Any]) -> None:
    with start_server(task="embed", step_s=0.01, max_num_seqs=8) as server:
        done = threading.Event()

        def large() -> None:
            # Each of its 256 steps takes 10 ms.
            assert len(embed(server, ["the cat"] * 2048)) == 2048
            done.set()

        worker = threading.Thread(target=large)
        worker.start()
        wait_until(lambda: server.engine.stats.num_waiting > 0)
        begin = time.perf_counter()
        assert server.get("/health").status_code == 200
        assert len(embed(server, "one")) == 1
        took = time.perf_counter() - begin
        first = not done.is_set()
        worker.join()
        assert first, f"the small request came last, after {took:.2f} s"


def test_what_nobody_waits_for_is_dropped(start_server: Callable[..., Any]) -> None:
    with start_server(task="embed", step_s=0.05, max_num_seqs=1) as server:
        with pytest.raises(httpx.ReadTimeout):
            server.post("/v1/embeddings", json={"input": ["the cat"] * 2000}, timeout=0.5)
        # All of it would take 100 s.
        wait_until(lambda: server.engine.stats.num_waiting == 0 and server.engine.stats.steps_total > 0, 20)
        assert len(embed(server, "one")) == 1
        assert 'request_success_total{finished_reason="abort",model_name="scripted"} 1.0' in server.get("/metrics").text


def test_too_many_requests_wait(start_server: Callable[..., Any]) -> None:
    with start_server(limits=Limits(max_waiting=2), task="embed", step_s=0.2, max_num_seqs=1) as server:
        workers = [threading.Thread(target=embed, args=(server, ["x"] * 4)) for _ in range(2)]
        for worker in workers:
            worker.start()
        wait_until(lambda: len(server.app.state.serving.running) == 2)
        answer = server.post("/v1/embeddings", json={"input": "x"})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "server_is_overloaded" and answer.headers["Retry-After"]
        for worker in workers:
            worker.join()
        assert len(embed(server, "x")) == 1


def test_an_engine_that_dies_fails_its_requests(start_server: Callable[..., Any]) -> None:
    with start_server(task="embed", crash_after=3, max_num_seqs=1) as server:
        answer = server.post("/v1/embeddings", json={"input": ["x"] * 5})
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_died"
        wait_until(lambda: bool(server.get("/health").status_code == 200))
        assert len(embed(server, ["x"] * 2)) == 2


def test_figures(embedder: httpx.Client) -> None:
    def figure(name: str) -> float:
        lines = embedder.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"wllm:{name}")).rpartition(" ")[2])

    success = 'request_success_total{finished_reason="stop",model_name="scripted"}'
    before = figure(success), figure("request_prompt_tokens_sum")
    embed(embedder, [[1, 2, 3], [4]])
    assert (figure(success), figure("request_prompt_tokens_sum")) == (before[0] + 1, before[1] + 4)


def test_the_body_is_plain_json(embedder: httpx.Client) -> None:
    answer = embedder.post("/v1/embeddings", json={"input": ["a", "b"], "model": "org/other-name"})
    assert answer.headers["content-type"].startswith("application/json")
    body = json.loads(answer.content)
    assert set(body) == {"object", "id", "created", "model", "usage", "data"}
    assert body["model"] == "org/other-name"
    assert embedder.post("/embeddings", json={"input": "a"}).status_code == 200
