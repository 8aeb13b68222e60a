"""Every field of the requests for vectors and scores changes something that a client can see."""

import base64
import math
from collections.abc import Iterator
from typing import Any

import pytest
from field_probe import Case, Probe, Seen, has_all

from wllm_api.schemas.embeddings import EmbeddingRequest, EmbedRequest, OllamaEmbeddingsRequest
from wllm_api.schemas.rerank import RerankRequest, ScoreRequest

LONG = "the cat and the dog " * 40
Cases = list[Case]


def tokens(seen: Seen) -> int:
    count: int = seen.body["usage"]["prompt_tokens"]
    return count


def vector(seen: Seen) -> Any:
    return seen.body["data"][0]["embedding"]


def shared(**texts: Any) -> Cases:
    """The fields of all requests that hold `texts`; the last one may be long, the others are "abc"."""
    long = {**texts, list(texts)[-1]: [LONG]}
    return [
        ("model", {**texts, "model": "org/other-name"}, lambda s: s.body["model"] == "org/other-name"),
        ("truncate_prompt_tokens", {**long, "truncate_prompt_tokens": -1}, lambda s: s.status == 200),
        ("truncate_prompt_tokens", {**long, "truncate_prompt_tokens": 9}, lambda s: tokens(s) in (9, 9 + 1 + 3)),
        ("add_special_tokens", {**texts, "add_special_tokens": False}, lambda s: tokens(s) == PLAIN[len(texts)]),
        *((name, texts, lambda s: tokens(s) > 0) for name in texts),
    ]


# The tokens of "abc" once, and twice.
PLAIN = {1: 3, 2: 6}
EMBEDDINGS: Cases = [
    *shared(input=["abc"]),
    (
        "encoding_format",
        {"input": "abc", "encoding_format": "base64"},
        lambda s: len(base64.b64decode(vector(s))) == 40,
    ),
    ("dimensions", {"input": "abc", "dimensions": 4}, lambda s: len(vector(s)) == 4),
    ("normalize", {"input": "abc", "normalize": False}, lambda s: math.hypot(*vector(s)) > 1.1),
]
RERANK: Cases = [
    *shared(query="abc", documents=["abc"]),
    ("top_n", {"query": "abc", "documents": ["a", "b"], "top_n": 1}, lambda s: len(s.body["results"]) == 1),
    ("return_documents", {"query": "abc", "documents": ["abc"], "return_documents": False},
     lambda s: "document" not in s.body["results"][0]),
    ("max_tokens_per_doc", {"query": "abc", "documents": [LONG], "max_tokens_per_doc": 5}, lambda s: s.status == 200),
]  # fmt: skip
SCORE: Cases = shared(text_1="abc", text_2=["abc"])
EMBED: Cases = [
    ("model", {"model": "org/other-name", "input": "abc"}, lambda s: s.body["model"] == "org/other-name"),
    ("input", {"model": "scripted", "input": ["a", "b"]}, lambda s: len(s.body["embeddings"]) == 2),
    ("truncate", {"model": "scripted", "input": LONG, "truncate": False}, lambda s: s.refused),
    ("dimensions", {"model": "scripted", "input": "a", "dimensions": 4}, lambda s: len(s.body["embeddings"][0]) == 4),
]
OLDER: Cases = [
    ("model", {"model": "org/other-name", "prompt": "abc"}, lambda s: s.body["embedding"]),
    ("prompt", {"model": "scripted", "prompt": "abc"}, lambda s: len(s.body["embedding"]) == 10),
]
WITH_VECTORS = [
    *(("/v1/embeddings", case) for case in EMBEDDINGS),
    *(("/api/embed", case) for case in EMBED),
    *(("/api/embeddings", case) for case in OLDER),
]
WITH_SCORES = [
    *(("/v1/rerank", case) for case in RERANK),
    *(("/v2/rerank", case) for case in RERANK if case[0] != "return_documents"),
    *(("/v1/score", case) for case in SCORE),
]


@pytest.fixture(scope="module")
def vectors(start_server: Any) -> Iterator[Probe]:
    """A probe of a server that embeds."""
    options = {"matryoshka": True, "adds_begin_token": True, "max_model_len": 32}
    with start_server(task="embed", **options) as client:
        yield Probe(client)


@pytest.fixture(scope="module")
def scores(start_server: Any) -> Iterator[Probe]:
    """A probe of a server that scores pairs."""
    with start_server(task="score", adds_begin_token=True, max_model_len=32) as client:
        yield Probe(client)


@pytest.mark.parametrize(
    ("path", "case"), [*WITH_VECTORS, *WITH_SCORES], ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_field_with_vectors(vectors: Probe, path: str, case: Case) -> None:
    vectors.check(path, case)


# Without a second mark between its texts, a pair of this tokenizer has none at all.
@pytest.mark.parametrize(
    ("path", "case"),
    [(path, case) for path, case in WITH_SCORES if case[0] != "add_special_tokens"],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_field_with_scores(scores: Probe, path: str, case: Case) -> None:
    scores.check(path, case)


def test_every_field_has_a_case() -> None:
    has_all(EMBEDDINGS, EmbeddingRequest, ())
    has_all(RERANK, RerankRequest, ())
    has_all(SCORE, ScoreRequest, ())
    # `keep_alive` concerns a server that unloads models: see tests/hosting.
    has_all(EMBED, EmbedRequest, {"keep_alive"})
    has_all(OLDER, OllamaEmbeddingsRequest, {"keep_alive"})


@pytest.mark.parametrize(
    "schema", [EmbeddingRequest, RerankRequest, ScoreRequest, EmbedRequest, OllamaEmbeddingsRequest]
)
def test_fields_without_effect_are_taken(vectors: Probe, schema: Any) -> None:
    path, request = {
        EmbeddingRequest: ("/v1/embeddings", {"input": "abc"}),
        RerankRequest: ("/v1/rerank", {"query": "a", "documents": ["abc"]}),
        ScoreRequest: ("/v1/score", {"text_1": "a", "text_2": "abc"}),
        EmbedRequest: ("/api/embed", {"model": "scripted", "input": "abc"}),
        OllamaEmbeddingsRequest: ("/api/embeddings", {"model": "scripted", "prompt": "abc"}),
    }[schema]
    assert schema.no_effect
    seen = vectors.post(path, {**request, **{name: {"a": ["b"]} for name in schema.no_effect}})
    assert seen.body and not seen.ignored
