"""R30: whatever the bytes are, the client learns what is wrong with them."""

import gzip
import json
import socket
from typing import Any

import httpx
import pytest
from server_client import message_of

from wllm_api.bodies import MAX_SHOWN, parse_object
from wllm_api.http_errors import InvalidRequest
from wllm_api.protocol import MAX_HEAD_BYTES

GOOD = '{"a": "ä龜"}'


def test_utf8() -> None:
    assert parse_object(GOOD.encode()) == {"a": "ä龜"}


def test_byte_order_mark_is_taken() -> None:
    assert parse_object(b"\xef\xbb\xbf" + GOOD.encode()) == {"a": "ä龜"}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no body"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object, not an array"),
        (b"null", "must be a JSON object, not null"),
        (b'"x"', "must be a JSON object, not a string"),
        (b"3", "must be a JSON object, not a number"),
        (b'{"a": "' + "你好".encode("gbk") + b'"}', "not valid UTF-8"),
        (GOOD.encode("utf-16"), "not valid UTF-8"),
        (GOOD.encode("utf-16-le"), "not valid"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": "\\ud83e"}', "surrogate"),
        (b'{"\\udc00": 1}', "surrogate"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": 1, "b": 2, "a": 1}', "has 'a' twice"),
        (b'{"messages": [{"role": "user", "role": "system"}]}', "has 'role' twice"),
        (b'{"\\ud800": 1, "\\ud800": 2}', r"has '\\ud800' twice"),
    ],
)
def test_bad_bytes(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_object(raw)


def test_whole_surrogate_pair_is_taken() -> None:
    assert parse_object(b'{"a": "\\ud83e\\udee0"}') == {"a": "🫠"}


ROUTES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank",
    "/tokenize", "/api/chat", "/api/generate", "/api/show", "/api/embed",
)  # fmt: skip


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_tells_it_in_its_form(client: httpx.Client, path: str) -> None:
    good = gzip.compress(b'{"model": "scripted"}')
    for raw, headers, words in (
        (b"", {}, "no body"), (b"{", {}, "JSON"), (b"[]", {}, "object"), (b"\xff", {}, "UTF-8"),
        (b'{"model": NaN}', {}, "NaN"), (b'{"model": 5}', {}, "model"), (good, {"Content-Encoding": "gzip"}, "gzip"),
    ):  # fmt: skip
        answer = client.post(path, content=raw, headers=headers)
        assert answer.status_code == 400
        assert words in message_of(answer)


def test_every_answer_tells_its_charset(client: httpx.Client) -> None:
    """Windows PowerShell 5.1 reads JSON as Latin-1 unless it is told, and shows other letters wrongly."""
    answers = [client.get(path) for path in ("/v1/models", "/health", "/version", "/api/tags", "/openapi.json", "/no")]
    answers += [client.post(path, content=b"{") for path in ROUTES]
    answers.append(client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "ä"}]}))
    assert answers[-1].status_code == 200
    told = {answer.headers["content-type"] for answer in answers if answer.content}
    assert told == {"application/json; charset=utf-8"}


DEEP = {
    "chat's arguments": ("/v1/chat/completions", """{"max_tokens": 1, "messages": [{"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"id": "0", "function": {"name": "f", "arguments": "%s"}}]}]}"""),
    "chat's parameters": ("/v1/chat/completions", """{"max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": %s}}}]}"""),
    "chat's forced parameters": ("/v1/chat/completions", """{"max_tokens": 1, "tool_choice": "required",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": %s}}}]}"""),
    "a block's input": ("/v1/messages", """{"max_tokens": 1, "messages": [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"a": %s}}]}, {"role": "user", "content": "x"}]}"""),
    "ollama's arguments": ("/api/chat", """{"model": "scripted", "stream": false, "options": {"num_predict": 1},
        "messages": [{"role": "user"}, {"role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": %s}}}]}]}"""),
    "ollama's form": ("/api/chat", """{"model": "scripted", "stream": false, "options": {"num_predict": 1},
        "messages": [{"role": "user"}], "format": {"const": %s}}"""),
}  # fmt: skip


@pytest.mark.parametrize("place", DEEP)
def test_deep_values_are_taken_or_refused(client: httpx.Client, place: str) -> None:
    """What Python reads it may not be able to write or to walk through: between, there is a depth of its own."""
    path, body = DEEP[place]
    for depth in (20, *range(150, 1000, 50), *range(930, 1000, 5), 5_000, 100_000):
        answer = client.post(path, content=body % ("[" * depth + "]" * depth))
        if answer.status_code != 200:
            assert answer.status_code == 400 and message_of(answer), (place, depth)
        assert depth < 100_000 or answer.status_code == 400
        assert depth > 20 or "arameters" in place or answer.status_code == 200, answer.text


@pytest.mark.parametrize("wrong", ["x" * 100_000, ["x"] * 100_000, {"a": {"b": [1, "龜" * 1000]}}])
def test_wrong_value_is_shown_in_short(client: httpx.Client, wrong: object) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a", "n": wrong})
    shown = answer.json()["error"]["message"].partition("(got ")[2].partition("...)")
    assert answer.status_code == 400
    assert len(shown[0]) == MAX_SHOWN - 3
    assert shown[1]


@pytest.mark.parametrize(
    ("fields", "others"),
    [
        ({"temperature": 9}, ""),
        ({"n": 1000}, ""),
        ({"messages": [{"role": "user", "content": 3}]}, ""),
        ({"stop": [1, 2, 3]}, ""),
        ({"temperature": 9, "n": 0}, " 1 more field is wrong too."),
        ({"temperature": 9, "n": 0, "seed": "x"}, " 2 more fields are wrong too."),
    ],
)
def test_other_wrong_fields_are_counted_once(client: httpx.Client, fields: dict[str, Any], others: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    message = client.post("/v1/chat/completions", json=body).json()["error"]["message"]
    assert message.endswith(others)
    assert ("wrong too" in message) == bool(others)


@pytest.mark.parametrize("raw", [
    b"BREW /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\x00" * 50,
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
])  # fmt: skip
def test_what_is_no_http_gets_an_error_object(client: httpx.Client, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=10) as sock:
        sock.sendall(raw)
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"X-Request-Id: " in head
    error: Any = json.loads(body)["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)


def read_all(sock: socket.socket) -> bytes:
    try:
        return b"".join(iter(lambda: sock.recv(65536), b""))
    except ConnectionError:  # closed with bytes of ours unread
        return b""


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n"])
def test_head_without_end_is_refused(client: httpx.Client, start: bytes) -> None:
    piece = b"X-A: b\r\n" if start.endswith(b"\n") else b"a" * 8
    head = start + piece * (MAX_HEAD_BYTES // len(piece))
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=10) as sock:
        sock.sendall(head[:MAX_HEAD_BYTES])
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(10)
        # One byte more, so that none is left unread when the server closes: that would cost us its answer.
        sock.sendall(head[MAX_HEAD_BYTES : MAX_HEAD_BYTES + 1])
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"type": "invalid_request_error"' in answer


def test_long_body_behind_its_head_is_no_long_head(client: httpx.Client) -> None:
    content = json.dumps({"tokens": [5] * 100_000}).encode()
    head = f"POST /detokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=10) as sock:
        for _ in range(2):
            sock.sendall(head.encode() + content)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            while not sock.recv(65536).endswith(b'"}'):
                pass


def test_nothing_is_put_behind_half_an_answer(start_server: Any) -> None:
    content = json.dumps({"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    with start_server(step_s=0.01) as slow:
        with socket.create_connection(("127.0.0.1", slow.base_url.port), timeout=10) as sock:
            sock.sendall(head.encode() + content)
            answer = sock.recv(65536)
            sock.sendall(b"\x00garbage\r\n\r\n")
            answer += read_all(sock)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"not valid HTTP" not in answer
