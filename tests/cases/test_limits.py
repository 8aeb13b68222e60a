"""Requests that cannot be answered: refused at once by name, while everybody else goes on unchanged."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from cases.odd_model import CONTEXT, VOCAB_SIZE
from cases.requests import CHAT, COMPLETIONS, HI, ask, error_of, refusal, stream, streamed_text, text_of


@contextmanager
def beside_streams(client: httpx.Client, max_tokens: int = 100) -> Iterator[None]:
    """Runs what is within while one stream after another is under way; each must be what it is alone."""
    bystander = {"prompt": "Story:", "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    alone = text_of(ask(client, COMPLETIONS, **bystander))
    begun, done = threading.Event(), threading.Event()

    def others() -> set[str]:
        texts = set()
        while not done.is_set():
            begun.set()
            texts.add(streamed_text(stream(client, COMPLETIONS, **bystander)))
        return texts

    with ThreadPoolExecutor(1) as pool:
        streams = pool.submit(others)
        assert begun.wait(10)
        try:
            yield
        finally:
            done.set()
        assert streams.result() == {alone}


@pytest.mark.parametrize(("fields", "limit"), [
    ({"max_tokens": None}, None), ({}, None), ({"max_tokens": -1}, None), ({"max_completion_tokens": 5}, 5),
    ({"max_tokens": 3, "max_completion_tokens": 5}, 5),
])  # fmt: skip
def test_r11_without_a_limit_an_answer_may_fill_the_context(
    odd: httpx.Client, fields: dict[str, Any], limit: int | None
) -> None:
    """eternalai-org/eternal-zoo#14"""
    answer = ask(odd, CHAT, messages=HI, ignore_eos=True, temperature=0, **fields)
    usage = answer["usage"]
    assert usage["completion_tokens"] == (limit or CONTEXT - usage["prompt_tokens"])
    assert answer["choices"][0]["finish_reason"] == "length"


def test_r11_no_tokens_at_all_are_refused(odd: httpx.Client) -> None:
    """eternalai-org/eternal-zoo#14"""
    assert refusal(odd, CHAT, messages=HI, max_tokens=0)["param"] == "max_tokens"


def test_r12_a_prompt_beyond_the_context_is_refused(odd: httpx.Client) -> None:
    """sgl-project/sglang#3910"""
    long = "word " * (10 * CONTEXT)
    with beside_streams(odd):
        error = refusal(odd, CHAT, messages=[{"role": "user", "content": long}], max_tokens=16)
    assert error["code"] == "context_length_exceeded" and f"{CONTEXT} tokens" in error["message"]
    assert str(ask(odd, "/tokenize", messages=[{"role": "user", "content": long}])["count"]) in error["message"]
    ask(odd, CHAT, messages=HI, max_tokens=1)


@pytest.mark.parametrize("model", ["http", "odd"])
def test_r13_an_empty_prompt_ends_nothing(model: str, request: pytest.FixtureRequest) -> None:
    """vllm-project/vllm#7283; the real model's tokenizer adds no begin token."""
    client: httpx.Client = request.getfixturevalue(model)
    with beside_streams(client, max_tokens=10 if model == "http" else 100):
        for prompt in ("", [""], ["", "Hello"]):
            assert len(ask(client, COMPLETIONS, prompt=prompt, max_tokens=4)["choices"]) == max(len(prompt), 1)
        for prompt in ([], [[]]):
            assert refusal(client, COMPLETIONS, prompt=prompt, max_tokens=4)["param"] == "prompt"
        ask(client, CHAT, messages=[{"role": "user", "content": ""}], max_tokens=4)
        assert refusal(client, CHAT, messages=[], max_tokens=4)["param"] == "messages"


@pytest.mark.parametrize(("bias", "word"), [
    ({"999999999": 5, "-1": 3}, "999999999"), ({"-1": 3}, "-1"), ({"abc": 1}, "abc"), ({"5": 1000}, "1000"),
    ({str(VOCAB_SIZE): 1}, str(VOCAB_SIZE)),
])  # fmt: skip
def test_r14_a_bias_for_no_token_is_refused(odd: httpx.Client, bias: dict[str, float], word: str) -> None:
    """vllm-project/vllm#16529: refused by the server, so that no kernel ever sees such an id."""
    for path, field in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "Hello"})):
        error = refusal(odd, path, **field, max_tokens=4, logit_bias=bias)
        assert error["param"] == "logit_bias" and word in error["message"]


@pytest.mark.parametrize("bias", [{}, {str(n): n % 3 - 1 for n in range(300)}])
def test_r14_a_good_bias_is_taken(odd: httpx.Client, bias: dict[str, float]) -> None:
    """vllm-project/vllm#16529"""
    ask(odd, CHAT, messages=HI, max_tokens=4, logit_bias=bias)


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("token_id", [VOCAB_SIZE, -1, 2**31, 2**63])
def test_every_id_is_checked(odd: httpx.Client, field: str, token_id: int) -> None:
    assert refusal(odd, COMPLETIONS, prompt="Hi", max_tokens=1, **{field: [3, token_id]})["param"].startswith(field)
    assert refusal(odd, COMPLETIONS, prompt=[3, token_id], max_tokens=1)["param"] == "prompt"


BAD_MESSAGES = [
    "x", 123, {}, [], ["x"], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": {"text": "x"}}], None,
]  # fmt: skip


@pytest.mark.parametrize("messages", BAD_MESSAGES)
def test_r24_messages_that_are_none_are_refused_at_once(odd: httpx.Client, messages: object) -> None:
    """dtzp555-max/ocp#110"""
    answer = odd.post(CHAT, json={"messages": messages}, timeout=5)
    assert error_of(answer)["param"].startswith("messages")
    assert error_of(odd.post(CHAT, json={"max_tokens": 1}, timeout=5))["param"] == "messages"


BAD_SCHEMAS = [
    {"type": "stringg"}, {"type": "object", "properties": "no"}, {"$ref": "#/nowhere"},
    {"type": "string", "pattern": "("}, {"enum": []}, [], "x", {"minItems": 3, "maxItems": 1, "type": "array"}, False,
]  # fmt: skip


def test_r27_bad_schemas_are_refused_beside_others(odd: httpx.Client) -> None:
    """vllm-project/vllm#17248; that compiling leaves the event loop free: `test_structured.py`."""
    forms: list[Any] = [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}} for schema in BAD_SCHEMAS
    ]
    with beside_streams(odd):
        for form in [*forms, {"type": "json_schema"}, {"type": "nonsense"}, {}]:
            error = refusal(odd, CHAT, messages=HI, max_tokens=8, response_format=form)
            assert error["param"].startswith("response_format") and error["message"]
    assert odd.get("/health").status_code == 200


GOOD = '{"messages": [{"role": "user", "content": "你好"}], "max_tokens": 2}'


@pytest.mark.parametrize(("raw", "words"), [
    (GOOD.encode("gbk"), "UTF-8"), (GOOD.encode("utf-16"), "UTF-8"), (GOOD.encode("utf-16-le"), ""), (b"", "no body"),
    (b"{", "JSON"), (b"[]", "object"), (b"null", "object"), (b"\xff", "UTF-8"),
])  # fmt: skip
def test_r30_bytes_that_are_no_request_are_refused(odd: httpx.Client, raw: bytes, words: str) -> None:
    """ggml-org/llama.cpp#6396"""
    error = error_of(odd.post(CHAT, content=raw, headers={"Content-Type": "application/json"}))
    assert words in error["message"]


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", None])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_r30_what_powershell_sends_is_taken(odd: httpx.Client, mark: bytes, content_type: str | None) -> None:
    """ggml-org/llama.cpp#6396: a byte order mark, another content type or none."""
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert odd.post(CHAT, content=mark + GOOD.encode(), headers=headers).status_code == 200


def test_r30_a_compressed_body_is_refused(odd: httpx.Client) -> None:
    """ggml-org/llama.cpp#6396"""
    packed = odd.post(CHAT, content=gzip.compress(GOOD.encode()), headers={"Content-Encoding": "gzip"})
    assert "gzip" in error_of(packed)["message"]


@pytest.mark.parametrize("fields", [{"n": 0}, {"n": -1}, {"n": 1_000_000}, {"best_of": 0}])
def test_r32_a_refused_stream_never_begins(odd: httpx.Client, fields: dict[str, int]) -> None:
    """EricLBuehler/mistral.rs#1874; an error in the middle of a stream: `test_engine_death.py`."""
    path, body = (COMPLETIONS, {"prompt": "hello"}) if "best_of" in fields else (CHAT, {"messages": HI})
    answer = odd.post(path, json={**body, "max_tokens": 16, "stream": True, **fields}, timeout=10)
    assert answer.headers["content-type"].startswith("application/json")
    assert error_of(answer)["param"] in fields
