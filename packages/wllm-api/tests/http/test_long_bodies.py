"""A long body costs its own request: it is handled beside the event loop, and refused before much is done with it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from wllm_api import bodies, model, params
from wllm_api.bodies import parse_object
from wllm_api.engine import spawn
from wllm_api.engine.scripted_model import build_tokenizer, describe
from wllm_api.http_errors import InvalidRequest
from wllm_api.model import CHARS_PER_TOKEN, EDGE_TOKENS, ServedModel
from wllm_api.schemas.base import MAX_UNKNOWN
from wllm_api.text import ChatTemplate, Tokenizer
from wllm_api.text.limits import MAX_SIZE
from wllm_api.threads import LONG_BODY

CONTEXT = 256
LOOP = "wllm-test-server"
HI = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
    "/api/chat": {"model": "scripted", "messages": HI, "truncate": False},
    "/api/generate": {"model": "scripted", "prompt": "Hi"},
}


@pytest.fixture(scope="module")
def small(start_server: Any) -> Iterator[httpx.Client]:
    """A server with a short context."""
    with start_server(max_model_len=CONTEXT) as client:
        yield client


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The threads that did each kind of work, by its name."""
    seen: dict[str, set[str]] = {}

    def watch(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen.setdefault(name, set()).add(threading.current_thread().name)
            return work(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(bodies, "parse_object")
    watch(ChatTemplate, "render")
    watch(Tokenizer, "encode")
    watch(params, "resolve_bad_words")
    watch(spawn.pickle, "dumps")
    return seen


def worded(body: dict[str, Any], text: str) -> dict[str, Any]:
    """The body with this text for a prompt."""
    words = {"messages": [{"role": "user", "content": text}], "prompt": text, "input": text}
    return {**body, **{name: value for name, value in words.items() if name in body}}


@pytest.mark.parametrize("path", ROUTES)
def test_long_body_is_handled_beside_the_loop(small: httpx.Client, path: str, workers: dict[str, set[str]]) -> None:
    assert small.post(path, json=ROUTES[path]).status_code == 200
    assert workers["parse_object"] == {LOOP}  # which a short one is not worth leaving
    assert LOOP not in workers.pop("dumps")
    workers.clear()
    padded = {**ROUTES[path], "unknown": "x" * LONG_BODY, "tools": [], "bad_words": ["a"]}
    assert small.post(path, json=padded).status_code == 200
    assert "encode" in workers and ("render" in workers) == (path != "/v1/completions")
    assert ("resolve_bad_words" in workers) == path.endswith("completions")
    assert LOOP not in set().union(*workers.values())


@pytest.mark.parametrize("path", ROUTES)
def test_text_far_too_long_is_refused_by_its_beginning(
    small: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    encode = Tokenizer.encode

    def measured(self: Tokenizer, text: str, **options: Any) -> list[int]:
        sizes.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", measured)
    monkeypatch.setattr(model, "READ_CHARS", 0)
    answer = small.post(path, json=worded(ROUTES[path], "word " * 100_000))
    assert answer.status_code == 400
    assert ("maximum" in answer.text and " tokens or more" in answer.text) or "as far as it was counted" in answer.text
    assert sum(sizes) <= 3 * CHARS_PER_TOKEN * CONTEXT


def test_text_that_is_cut_or_counted_is_read_to_its_end(small: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "READ_CHARS", 0)
    text = "word " * 10_000
    ids = small.post("/tokenize", json={"prompt": text}).json()
    assert len(ids["tokens"]) == ids["count"] > 10_000
    body = {"prompt": text + "end", "truncate_prompt_tokens": 5, "return_token_ids": True, "max_tokens": 1}
    kept = small.post("/v1/completions", json=body).json()["choices"][0]["prompt_token_ids"]
    assert small.post("/detokenize", json={"tokens": kept}).json()["prompt"].endswith("d end")
    counted = small.post("/v1/messages/count_tokens", json=worded({"messages": HI}, text)).json()
    assert counted["input_tokens"] > ids["count"]


def test_beginning_is_all_that_fits_or_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "READ_CHARS", 0)
    served = ServedModel(describe(build_tokenizer(), max_model_len=CONTEXT, num_blocks=9, chat_template=None))
    rng = random.Random(3)
    cut = 0
    for _ in range(200):
        words = rng.choices(["assistant", " the", "x", "é", "🫠", " " * 20], k=rng.choice([10, 400, 3000]))
        text = "".join(words)
        beginning = served.beginning(text)
        if beginning != text:
            cut += 1
            assert text.startswith(beginning)
            assert len(served.tokenizer.encode(text)) > CONTEXT
            assert len(served.tokenizer.encode(beginning)) > CONTEXT + EDGE_TOKENS
    assert cut > 30
    # More characters for each token than are reckoned with.
    long = "assistant" * (CONTEXT - 1)
    assert len(long) > CHARS_PER_TOKEN * CONTEXT
    assert served.beginning(long) == long


def test_vectors_of_texts_far_too_long(embedder: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "READ_CHARS", 0)
    text = "the token of " * 20_000
    cut = embedder.post("/v1/embeddings", json={"input": text, "truncate_prompt_tokens": -1}).json()
    short = embedder.post("/v1/embeddings", json={"input": text[:2000], "truncate_prompt_tokens": -1}).json()
    assert cut["data"] == short["data"]
    refused = embedder.post("/v1/embeddings", json={"input": text})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_conversation_beyond_what_a_template_may_write(small: httpx.Client, workers: dict[str, set[str]]) -> None:
    half = "x" * (MAX_SIZE // 2 + 1)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": half}}
    for second in ({"role": "user", "content": half}, {"role": "assistant", "tool_calls": [call]}):
        answer = small.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": half}, second]})
        assert answer.status_code == 400
        assert f"the limit is {MAX_SIZE:,}" in answer.json()["error"]["message"]
    assert "render" not in workers and "encode" not in workers


def test_unknown_fields_are_named_up_to_a_number(client: httpx.Client) -> None:
    some = {f"x{number}": 1 for number in range(MAX_UNKNOWN)}
    answer = client.post("/v1/completions", json={"prompt": "a", **some})
    assert answer.status_code == 200
    assert answer.headers["X-Wllm-Ignored"].endswith(f"and {MAX_UNKNOWN - 20} more")
    for more in ({**some, "y": 1}, {**some, "stream_options": {"y": 1}, "stream": True}):
        answer = client.post("/v1/completions", json={"prompt": "a", **more})
        assert answer.status_code == 400
        assert f"more than {MAX_UNKNOWN:,} fields" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "x0"
    # One name in many places is one.
    many = [{"role": "user", "content": "a", "extra": 1}] * (MAX_UNKNOWN + 1)
    answer = client.post("/tokenize", json={"messages": many})
    assert (answer.status_code, answer.headers["X-Wllm-Ignored"]) == (200, "messages.extra")


def members(count: int) -> bytes:
    return json.dumps({str(number): 1 for number in range(count)}).encode()


def test_members_of_objects_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_MEMBERS", 100)
    assert len(parse_object(members(100))) == 100
    for raw in (members(101), b'{"a": [' + b",".join([b'{"b":1}'] * 100) + b"]}"):
        with pytest.raises(InvalidRequest, match="have 101 members; the limit is 100"):
            parse_object(raw)
    # In a text they are only text.
    text = members(101).decode()
    assert parse_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}


@pytest.mark.parametrize(("path", "body", "field"), [
    ("/v1/completions", {"prompt": "a", "bad_words": ["b" * 257]}, "bad_words[0]"),
    ("/v1/responses", {"input": "a", "metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ("/detokenize", {"tokens": [5] * (2**20 + 1)}, "tokens"),
])  # fmt: skip
def test_what_would_take_long_is_refused(client: httpx.Client, path: str, body: dict[str, Any], field: str) -> None:
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_each_prompt_has_the_room_that_it_leaves(small: Any, sent: Callable[[Any], list[Any]]) -> None:
    seen = sent(small)
    body = {"prompt": ["a", "the token", "b"], "max_tokens": -1, "bad_words": ["x"]}
    assert small.post("/v1/completions", json=body).status_code == 200
    assert [one.max_tokens for _, one in seen] == [CONTEXT - len(ids) for ids, _ in seen]
    assert all(one.bad_words_token_ids for _, one in seen)
    # What is asked of all is worked out once.
    assert seen[0][1] is seen[2][1]


def test_many_tokens_are_written_as_few_are(small: httpx.Client) -> None:
    few, many = (
        small.post("/tokenize", json={"prompt": 'a"é\u2028🫠' * count, "return_token_strs": True}).json()
        for count in (3, 6000)
    )
    for name in ("tokens", "token_strs"):
        assert many[name] == few[name][: few["count"] // 3] * 6000
    assert many["count"] == len(many["tokens"]) > 10_000
