"""Every route that the application has: no one gets in without a key or beyond a rate, and each has one name."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from wllm_api.app import METHODS, create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.middleware.keys import OPEN_PATHS
from wllm_api.middleware.requests import UNKNOWN_ROUTE
from wllm_api.settings import Access, Limits

PAGE = {"Origin": "http://localhost:3000"}
HANDSHAKE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "YQ==", "Sec-WebSocket-Version": "13"
}  # fmt: skip
# As clients write them, or those who look for a way in.
SPELLINGS = (
    *("{}", "/{}", "{}?a=/health", "{}/", "{}/%2e%2e/health", "/health/%2e%2e{}", "/ping/{}", "{};/health", "{}%2f"),
    *("{}%00", "/health%2f%2e%2e{}", "/%68ealth{}"),
)


def routes_of(app: FastAPI) -> Iterator[tuple[str, set[str]]]:
    """The declared path and the methods of each route."""
    for route in app.routes:
        inner = getattr(route, "effective_route_contexts", None)
        for one in (route,) if inner is None else inner():
            yield one.path_format, one.methods


ROUTES = {path for path, _ in routes_of(create_app([HostedModel(EngineProcess("never:started", {}), ["m"])]))}


def filled(path: str) -> str:
    return re.sub("{.*?}", "x", path)


def requests() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Whatever may be asked of a route: method, path, headers."""
    for path in sorted(ROUTES):
        for method in METHODS:
            yield method, filled(path), {}
        yield "GET", filled(path), HANDSHAKE
        yield "OPTIONS", filled(path), PAGE


def test_routes_are_found() -> None:
    """Else the tests below would ask for nothing."""
    assert {
        "/v1/models/{model_id}",
        "/models",
        "/metrics",
        "/docs",
        "/openapi.json",
        "/api/blobs/{digest}",
        "/",
    } <= ROUTES
    assert len(ROUTES) > 50
    assert OPEN_PATHS <= ROUTES


def test_no_route_without_a_key(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with start_server(Access(api_keys=("key",))) as guarded:
        monkeypatch.setattr(guarded.engine, "submit", None)
        for method, path, headers in requests():
            answer = guarded.request(method, path, headers=headers)
            assert (answer.status_code == 401) == (path not in OPEN_PATHS), (method, path, headers)
        for path in ("/v1/models", "/metrics", "/docs"):
            assert guarded.get(path, headers={"Authorization": "Bearer key"}).status_code == 200
            for spelling in SPELLINGS:
                url = f"{str(guarded.base_url).rstrip('/')}{spelling.format(path)}"
                assert guarded.get(url).status_code == 401, url


def test_no_route_beyond_the_rate(start_server: Any) -> None:
    with start_server(None, Limits(requests_per_minute=1)) as limited:
        assert limited.get("/version").status_code == 200
        for method, path, headers in requests():
            answer = limited.request(method, path, headers=headers)
            assert (answer.status_code == 429) == (path not in OPEN_PATHS), (method, path, headers)


def test_names_in_the_metrics_are_bounded(client: httpx.Client) -> None:
    """Whatever paths, methods and hosts a stranger thinks of."""
    random.seed(5)
    parts = [
        "v1",
        "v2",
        "api",
        "models",
        "m",
        "mo",
        "v",
        "x",
        "%7Bmodel_id%7D",
        "%2e%2e",
        "blobs",
        "responses",
        "a%22b",
        "é",
    ]
    for number in range(1000):
        parts[number % 3 + 5] = f"word{random.getrandbits(40)}"
        path = "/" + "/".join(random.choices(parts, k=random.randint(1, 4)))
        method = random.choice(["GET", "POST", "DELETE", "PROPFIND", "M-SEARCH"])
        host = random.choice(["localhost", f"host{random.getrandbits(40)}.example"])
        assert client.request(method, path, headers={"Host": host}).status_code < 500
    for value in ("v1", "v", "m", "models", "v1/models"):
        client.get(f"/v1/models/{value}")
    text = client.get("/metrics").text
    assert "word" not in text and "host1" not in text and ".example" not in text
    for name in ("wllm:http_requests_total", "wllm:http_request_duration_seconds_count"):
        lines = [line for line in text.splitlines() if line.startswith(name + "{")]
        told = {re.search('handler="([^"]*)"', line)[1] for line in lines}  # type: ignore[index]  # each has one
        assert told - {UNKNOWN_ROUTE} <= ROUTES
        assert "/v1/models/{model_id}" in told
