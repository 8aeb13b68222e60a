"""POST /rerank and /score over HTTP, with a cross-encoder and with an embedding model."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

QUERY = "the cat"
DOCUMENTS = ["xyz", "the cat and the dog", {"text": "the cat", "title": "unused"}, "the fox"]
TEXTS = ["xyz", "the cat and the dog", "the cat", "the fox"]


@pytest.fixture(params=["cross_encoder", "embedder"])
def scorer(request: pytest.FixtureRequest) -> httpx.Client:
    """A client of a server of each kind."""
    found: httpx.Client = request.getfixturevalue(request.param)
    return found


def post(client: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    answer = client.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def cosines(client: httpx.Client) -> list[float]:
    data = post(client, "/v1/embeddings", input=[QUERY, *TEXTS])["data"]
    query, *vectors = (entry["embedding"] for entry in data)
    return [math.sumprod(query, vector) if hasattr(math, "sumprod") else sum(map(float.__mul__, query, vector))
            for vector in vectors]  # fmt: skip


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank(scorer: httpx.Client, path: str) -> None:
    body = post(scorer, path, model="scripted", query=QUERY, documents=DOCUMENTS)
    scores = {result["index"]: result["relevance_score"] for result in body["results"]}
    assert sorted(scores) == [0, 1, 2, 3]
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert body["results"][0]["index"] == 2
    assert body["model"] == "scripted" and body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0
    for result in body["results"]:
        # Cohere's newer version does not repeat the documents.
        assert result.get("document") == (None if path == "/v2/rerank" else {"text": TEXTS[result["index"]]})
    if path == "/v2/rerank":
        assert body["meta"]["tokens"]["input_tokens"] == body["usage"]["prompt_tokens"]


def test_the_answer_says_how_it_was_scored(cross_encoder: httpx.Client, embedder: httpx.Client) -> None:
    for client, method in ((cross_encoder, "cross-encoder"), (embedder, "cosine")):
        assert post(client, "/rerank", query=QUERY, documents=TEXTS)["method"] == method
        assert post(client, "/score", text_1=QUERY, text_2=TEXTS)["method"] == method


def test_cosines_are_those_of_the_vectors(embedder: httpx.Client) -> None:
    wanted = cosines(embedder)
    data = post(embedder, "/score", text_1=QUERY, text_2=TEXTS)["data"]
    assert [entry["score"] for entry in data] == pytest.approx(wanted, abs=1e-6)
    results = post(embedder, "/rerank", query=QUERY, documents=TEXTS)["results"]
    assert {one["index"]: one["relevance_score"] for one in results} == pytest.approx(dict(enumerate(wanted)), abs=1e-6)


def test_no_cosine_lies_beyond_1(embedder: httpx.Client) -> None:
    texts = [f"text {number}" for number in range(200)]
    scores = [entry["score"] for entry in post(embedder, "/score", text_1=texts, text_2=texts)["data"]]
    assert scores == pytest.approx([1.0] * 200, abs=1e-6) and max(scores) <= 1.0


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_score(scorer: httpx.Client, path: str) -> None:
    many = post(scorer, path, text_1=QUERY, text_2=TEXTS)
    assert [(entry["index"], entry["object"]) for entry in many["data"]] == [(n, "score") for n in range(4)]
    pairs = post(scorer, path, text_1=[QUERY] * 4, text_2=TEXTS)["data"]
    assert pairs == many["data"]
    (one,) = post(scorer, path, text_1=QUERY, text_2=TEXTS[1])["data"]
    assert one["score"] == pytest.approx(many["data"][1]["score"], abs=1e-6)
    swapped = post(scorer, path, text_1=list(reversed(TEXTS)), text_2=TEXTS)["data"]
    assert len(swapped) == 4
    assert many["object"] == "list" and many["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize(("top_n", "count"), [(None, 4), (0, 4), (2, 2), (9, 4)])
def test_top_n(scorer: httpx.Client, top_n: int | None, count: int) -> None:
    every = post(scorer, "/rerank", query=QUERY, documents=TEXTS)["results"]
    assert post(scorer, "/rerank", query=QUERY, documents=TEXTS, top_n=top_n)["results"] == every[:count]


@pytest.mark.parametrize(
    ("path", "asked", "shown"),
    [("/rerank", None, True), ("/rerank", False, False), ("/v2/rerank", None, False), ("/v2/rerank", True, True)],
)
def test_return_documents(scorer: httpx.Client, path: str, asked: bool | None, shown: bool) -> None:
    results = post(scorer, path, query=QUERY, documents=TEXTS, return_documents=asked)["results"]
    assert all(("document" in result) is shown for result in results)


def test_ties_keep_the_order_of_the_documents(scorer: httpx.Client) -> None:
    results = post(scorer, "/rerank", query=QUERY, documents=["xyz"] * 5)["results"]
    assert [result["index"] for result in results] == [0, 1, 2, 3, 4]


LONG = "the cat " * 80


def test_long_documents(scorer: httpx.Client) -> None:
    answer = scorer.post("/rerank", json={"query": QUERY, "documents": ["x", LONG]})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["param"], error["code"]) == ("documents", "context_length_exceeded")
    assert "maximum context length is 64 tokens" in error["message"] and "(number 1)" in error["message"]
    for way in ({"truncate_prompt_tokens": -1}, {"max_tokens_per_doc": 7}):
        cut = post(scorer, "/rerank", query=QUERY, documents=["x", LONG], **way)
        assert len(cut["results"]) == 2
    whole = post(scorer, "/rerank", query=QUERY, documents=["x"])["usage"]["prompt_tokens"]
    added = post(scorer, "/rerank", query=QUERY, documents=["x", LONG], max_tokens_per_doc=7)["usage"]["prompt_tokens"]
    again = whole - 1 if scorer.get("/v1/models").json()["data"][0]["task"] == "score" else 0
    assert added == whole + again + 7


def test_a_query_is_never_cut(cross_encoder: httpx.Client) -> None:
    answer = cross_encoder.post("/rerank", json={"query": LONG, "documents": ["x"], "truncate_prompt_tokens": -1})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["param"], error["code"]) == ("query", "context_length_exceeded")
    assert "and 64 are allowed" in error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        ("/rerank", {"documents": ["x"]}, "query", "required"),
        ("/rerank", {"query": "x"}, "documents", "required"),
        ("/rerank", {"query": "x", "documents": []}, "documents", "at least 1"),
        ("/rerank", {"query": "x", "documents": "x"}, "documents", "list"),
        ("/rerank", {"query": "x", "documents": ["x", {"title": "y"}]}, "documents", "number 1"),
        ("/rerank", {"query": "x", "documents": ["x"] * 2049}, "documents", "the limit is 2048"),
        ("/rerank", {"query": ["x"], "documents": ["x"]}, "query", "string"),
        ("/rerank", {"query": "x", "documents": ["x"], "top_n": -1}, "top_n", "0"),
        ("/rerank", {"query": "x", "documents": ["x"], "max_tokens_per_doc": 0}, "max_tokens_per_doc", "1"),
        ("/rerank", {"query": "x", "documents": ["x"], "rank_fields": ["title"]}, "rank_fields", "not supported"),
        ("/rerank", {"query": "x", "documents": ["x"], "max_chunks_per_doc": 2}, "max_chunks_per_doc", "not support"),
        ("/score", {"text_1": "x"}, "text_2", "required"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1", "2 texts and 'text_2' 3"),
        ("/score", {"text_1": ["a", "b"], "text_2": "c"}, "text_1", "2 texts and 'text_2' 1"),
        ("/score", {"text_1": [], "text_2": []}, "text_1", "at least 1"),
        ("/score", {"text_1": 4, "text_2": "x"}, "text_1", "list"),
    ],
)
def test_refusals_name_the_field(
    scorer: httpx.Client, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = scorer.post(path, json=fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"]
