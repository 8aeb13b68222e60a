"""Where keys come from, and how many requests each may send."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from wllm_api.api_keys import checked_keys, read_key_file
from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.http_errors import RateLimited, UnusableKey
from wllm_api.middleware.rates import MAX_CLIENTS, MINUTE_S, Rates
from wllm_api.settings import Access, Limits


def test_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "ключи Größe 日本.txt"
    path.write_bytes("\ufeff# ours\r\nfirst-key\r\n\r\n  second-kéy \r\n#third\r\n".encode())
    assert read_key_file(path) == ("first-key", "second-kéy")


@pytest.mark.parametrize("content", [b"", b"# nothing\n\n", b"\xff\xfe", "key\r\n".encode("utf-16")])
def test_file_without_keys_is_refused(tmp_path: Path, content: bytes) -> None:
    """It must not open the server to everybody."""
    path = tmp_path / "keys.txt"
    path.write_bytes(content)
    with pytest.raises(UnusableKey, match=re.escape(f"file of API keys {path}")):
        read_key_file(path)
    with pytest.raises(UnusableKey, match="cannot be read"):
        read_key_file(tmp_path / "none.txt")


@pytest.mark.parametrize("key", ["", " ", "a ", "\ta", "a\nb", "a\x00"])
def test_key_that_no_client_can_send_is_refused(key: str) -> None:
    with pytest.raises(UnusableKey, match="API key 2 of 2"):
        create_app([HostedModel(EngineProcess("never:started", {}), ["m"])], access=Access(api_keys=("first", key)))


def test_key_given_twice_counts_once() -> None:
    assert checked_keys(["a", "b", "a"]) == ("a", "b")


def test_rate_of_each_key(start_server: Any) -> None:
    access = Access(api_keys=("first", "second"))
    with start_server(access, Limits(requests_per_minute=3)) as client:
        first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))
        assert [client.get("/v1/models", headers=first).status_code for _ in range(5)] == [200, 200, 200, 429, 429]
        assert client.get("/v1/models", headers=second).status_code == 200
        # Neither probes nor those without a key take from anybody.
        assert [client.get("/health").status_code for _ in range(5)] == [200] * 5
        assert [client.get("/v1/models").status_code for _ in range(5)] == [401] * 5
        refused = client.post("/v1/completions", json={"prompt": "a"}, headers=first)
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert client.post("/v1/messages", json={}, headers=first).json()["error"]["type"] == "rate_limit_error"
        assert "limit" in client.post("/api/chat", json={}, headers=first).json()["error"]


def test_rate_of_an_address_without_keys(start_server: Any) -> None:
    with start_server(None, Limits(requests_per_minute=2)) as client:
        assert [client.get("/version").status_code for _ in range(3)] == [200, 200, 429]


def test_what_was_used_comes_back() -> None:
    async def app(*_: Any) -> None: ...

    rates = Rates(app, 6)

    def sent(now: float) -> int:
        count = 0
        try:
            while count < 100:
                rates._take("key", 6, now)
                count += 1
        except RateLimited as refusal:
            assert int(refusal.headers["Retry-After"]) <= MINUTE_S / 6
        return count

    assert [sent(0), sent(1), sent(10.5), sent(31), sent(1e6)] == [6, 0, 1, 2, 6]


def test_addresses_do_not_pile_up() -> None:
    async def app(*_: Any) -> None: ...

    rates = Rates(app, 6)
    for number in range(MAX_CLIENTS + 100):
        rates._take(f"address {number}", 6, 0)
    assert len(rates._left) == MAX_CLIENTS
