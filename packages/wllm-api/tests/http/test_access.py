"""Who may use the server: keys, web origins, host names."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_client import ServerClient

from wllm_api.settings import Access

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
PAGE = "http://localhost:3000"
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": CHAT,
    "/api/chat": {"model": "scripted", "stream": False, "messages": CHAT["messages"]},
    "/api/generate": {"model": "scripted", "stream": False, "prompt": "Hi"},
}
# Their clients may keep prefixes apart themselves.
SALTED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


@pytest.fixture(scope="module")
def guarded(start_server: Any) -> Iterator[Any]:
    """A server with two keys."""
    access = Access(
        api_keys=("first-key", "second-kéy"), allowed_origins=("https://chat.example",), allowed_hosts=("my-box",)
    )
    with start_server(access) as client:
        yield client


def bearer(key: str) -> dict[str, bytes]:
    return {"Authorization": b"Bearer " + key.encode()}


@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/tokenize", "/version", "/openapi.json", "/nope", "//metrics"]
)
def test_everything_asks_for_a_key(guarded: ServerClient, path: str) -> None:
    answer = guarded.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_probes_need_no_key(guarded: ServerClient, path: str) -> None:
    """R31."""
    assert guarded.get(path).status_code == 200


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer wrong", "Basic first-key", "first-key", "Bearer first-ke"])
def test_wrong_keys(guarded: ServerClient, value: str) -> None:
    assert guarded.get("/v1/models", headers={"Authorization": value}).status_code == 401


@pytest.mark.parametrize("key", ["first-key", "second-kéy"])
def test_right_keys(guarded: ServerClient, key: str) -> None:
    assert guarded.get("/v1/models", headers=bearer(key)).status_code == 200


def test_preflight_needs_no_key(guarded: ServerClient) -> None:
    """R31."""
    answer = guarded.options(
        "/v1/chat/completions",
        headers={
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
            "Access-Control-Request-Private-Network": "true",
        },
    )
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert answer.headers["access-control-allow-private-network"] == "true"


def test_refusal_is_readable_for_the_page(guarded: ServerClient) -> None:
    """R31."""
    answer = guarded.post("/v1/chat/completions", json=CHAT, headers={"Origin": PAGE})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize("origin", [
    "http://localhost", "https://localhost:1", "http://127.0.0.1:8080", "http://[::1]:3000", "http://app.localhost:5173",
    "https://chat.example", "https://CHAT.example",
])  # fmt: skip
def test_origins_that_may(guarded: ServerClient, origin: str) -> None:
    answer = guarded.get("/health", headers={"Origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", [
    "null", "https://evil.example", "http://localhost.evil.example", "http://127.0.0.1.evil.example", "file://",
    "http://192.168.1.5", "http://notlocalhost", "http://[::1", "chrome-extension://abc", "",
])  # fmt: skip
def test_origins_that_may_not(guarded: ServerClient, origin: str) -> None:
    for method in ("GET", "OPTIONS"):
        headers = {"Origin": origin, "Access-Control-Request-Method": "GET"}
        answer = guarded.request(method, "/v1/models", headers={**headers, **bearer("first-key")})
        assert answer.status_code == 403
        assert answer.json()["error"]["type"] == "permission_error"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1", "[::1]:8000", "10.1.2.3:8000", "my-box", "MY-BOX:1"]
)
def test_hosts_that_may(guarded: ServerClient, host: str) -> None:
    assert guarded.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_hosts_that_may_not(guarded: ServerClient, host: str) -> None:
    answer = guarded.get("/health", headers={"Host": host})
    assert answer.status_code == 403
    assert host in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", PROMPTS)
def test_cached_prefixes_are_apart_for_each_key(
    guarded: ServerClient, sent: Callable[[Any], list[Any]], path: str
) -> None:
    seen = sent(guarded)
    for key, fields in (
        ("first-key", {}),
        ("second-kéy", {}),
        ("first-key", {"cache_salt": "mine"}),
        ("first-key", {}),
    ):
        body = {**PROMPTS[path], **(fields if path in SALTED else {})}
        assert guarded.post(path, json=body, headers=bearer(key)).status_code == 200
    salts = [params.cache_salt for _, params in seen]
    assert len(set(salts)) == (3 if path in SALTED else 2)
    assert salts[0] == salts[3] != salts[1]
    assert "first-key" not in "".join(salts)


def test_client_keeps_its_own_request_id(client: ServerClient) -> None:
    assert client.get("/health", headers={"X-Request-Id": "my id 7"}).headers["x-request-id"] == "my id 7"


@pytest.mark.parametrize("wanted", ["x" * 129, "caf\u00e9", "tab\there"])
def test_unusable_request_id_is_replaced(client: ServerClient, wanted: str) -> None:
    got = client.get("/health", headers={"X-Request-Id": wanted.encode()}).headers["x-request-id"]
    assert len(got) == 32


def test_every_answer_has_a_new_request_id(client: ServerClient) -> None:
    assert client.get("/health").headers["x-request-id"] != client.get("/nope").headers["x-request-id"]
