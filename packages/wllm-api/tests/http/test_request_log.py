"""What the server tells of a request when it has ended: a line of the log, metrics, timings; never its text."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx
import pytest

from wllm_api.settings import Access
from wllm_api.testing import sse_data, wait_until

SECRET = "sesame"
MESSAGES = [{"role": "user", "content": SECRET}]
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": SECRET},
    "/v1/responses": {"input": SECRET},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/api/chat": {"model": "scripted", "messages": MESSAGES},
    "/api/generate": {"model": "scripted", "prompt": SECRET},
}
LOGGER = "wllm_api.middleware.requests"


def lines(caplog: pytest.LogCaptureFixture, request_id: str) -> list[str]:
    """The log's lines about a request, once there is one: it is written after the answer was sent."""

    def found() -> list[str]:
        return [text for record in caplog.records if (text := record.getMessage()).endswith(f"id={request_id}")]

    wait_until(lambda: bool(found()), 10)
    return found()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_one_line_tells_of_a_request(
    client: httpx.Client, log: pytest.LogCaptureFixture, path: str, stream: bool
) -> None:
    request_id = f"line {path} {stream}"
    answer = client.post(path, json={**BODIES[path], "stream": stream}, headers={"X-Request-Id": request_id})
    assert answer.headers["x-request-id"] == request_id
    (line,) = lines(log, request_id)
    found = re.fullmatch(
        rf"POST {path} 200 prompt=(\d+) cached=\d+ generated=(\d+) finish=(stop|length) "
        rf"queue=\d+\.\d+s first_token=\d+\.\d+s total=\d+\.\d+s id={request_id}",
        line,
    )
    assert found is not None, line
    assert int(found[1]) > 0 and int(found[2]) > 0
    assert SECRET not in log.text


def test_figures_are_those_of_usage(client: httpx.Client, log: pytest.LogCaptureFixture) -> None:
    body = {"prompt": [SECRET, "b"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    usage = client.post("/v1/completions", json=body, headers={"X-Request-Id": "f1"}).json()["usage"]
    (line,) = lines(log, "f1")
    assert f"prompt={usage['prompt_tokens']} " in line
    assert f"generated={usage['completion_tokens']} finish=length " in line


@pytest.mark.parametrize(("method", "path", "status", "told"), [
    ("POST", "/v1/chat/completions", 400, "/v1/chat/completions"),
    ("GET", "/v1/models/none", 404, "/v1/models/{model_id}"),
    ("GET", f"/{SECRET}", 404, "(unknown)"), ("GET", "/v1/completions", 405, "/v1/completions"),
    ("GET", "//v1//models", 200, "/v1/models"),
])  # fmt: skip
def test_refused_requests_have_a_line(
    client: httpx.Client, log: pytest.LogCaptureFixture, method: str, path: str, status: int, told: str
) -> None:
    url = str(client.base_url).rstrip("/") + path
    client.request(method, url, headers={"X-Request-Id": f"r {path}"}, content=SECRET.encode())
    record = [text.removesuffix(f"id=r {path}") for text in lines(log, f"r {path}")]
    assert len(record) == 1
    assert re.match(rf"{method} \S+ {status} total=", record[0])
    assert record[0].split()[1] == told
    assert SECRET not in record[0]


@pytest.mark.parametrize(("path", "told"), [
    ("/v1/chat/completions", "/v1/chat/completions"), ("/v1/models", "/v1/models"), ("/api/tags", "/api/tags"),
    (f"/v1/models/{SECRET}", "(unknown)"), (f"/{SECRET}", "(unknown)"),
])  # fmt: skip
def test_route_of_a_request_without_its_key(
    start_server: Any, log: pytest.LogCaptureFixture, path: str, told: str
) -> None:
    with start_server(Access(api_keys=("open-sesame",))) as guarded:
        assert guarded.get(path, headers={"X-Request-Id": "none"}).status_code == 401
        (line,) = lines(log, "none")
    assert line.split()[:3] == ["GET", told, "401"]


def test_probes_are_not_in_the_log(client: httpx.Client, log: pytest.LogCaptureFixture) -> None:
    for path in ("/health", "/ping", "/metrics"):
        client.get(path)
    client.get("/version", headers={"X-Request-Id": "after"})
    lines(log, "after")
    assert "/health" not in log.text and "/ping" not in log.text and "/metrics" not in log.text


def test_keys_are_not_in_the_log(start_server: Any, log: pytest.LogCaptureFixture) -> None:
    with start_server(Access(api_keys=("open-sesame",))) as guarded:
        for key in ("open-sesame", "wrong-sesame"):
            guarded.get("/v1/models", headers={"Authorization": f"Bearer {key}", "X-Request-Id": key[:3]})
            lines(log, key[:3])
    assert SECRET not in log.text
    assert "401" in log.text


def test_client_that_goes_is_told(start_server: Any, log: pytest.LogCaptureFixture) -> None:
    body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True}
    with start_server(step_s=0.01) as slow:
        with pytest.raises(httpx.ReadTimeout):
            slow.post("/v1/completions", json=body, headers={"X-Request-Id": "gone"}, timeout=0.3)
        (line,) = lines(log, "gone")
        assert re.match(r"POST /v1/completions 499 prompt=\d+ .* finish=abort ", line)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_timings_on_request(client: httpx.Client, path: str) -> None:
    body = {**BODIES[path], "max_tokens": 4, "ignore_eos": True}
    assert "timings" not in client.post(path, json=body).json()
    answer = client.post(path, json={**body, "timings_per_token": True}).json()
    timings, usage = answer["timings"], answer["usage"]
    assert timings["predicted_n"] == usage["completion_tokens"] == 4
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert timings["first_token_ms"] >= timings["queue_ms"] >= 0
    assert timings["predicted_ms"] > 0
    assert timings["predicted_per_second"] == pytest.approx(4000 / timings["predicted_ms"], rel=0.01)
    with client.stream("POST", path, json={**body, "stream": True, "timings_per_token": True}) as stream:
        chunks: Any = [chunk for chunk in sse_data(stream.iter_lines()) if chunk is not None]
    assert all("timings" in chunk for chunk in chunks if chunk["choices"])
    assert chunks[-1]["timings"]["predicted_n"] == 4


def test_http_requests_are_counted_by_route(client: httpx.Client) -> None:
    def count(handler: str, status: int) -> float:
        wanted = (
            f'wllm:http_requests_total{{handler="{handler}",method="POST",model_name="scripted",status="{status}"}} '
        )
        found = [line for line in client.get("/metrics").text.splitlines() if line.startswith(wanted)]
        return float(found[0].removeprefix(wanted)) if found else 0

    wanted = [("/v1/completions", 200), ("/v1/completions", 400), ("(unknown)", 404)]
    before = [count(*one) for one in wanted]
    client.post("/v1/completions", json={"prompt": "a"})
    client.post("/v1/completions", json={"prompt": 7})
    client.post("/no/such/route")
    # A request is counted after its answer, so one of another test may be counted here too.
    wait_until(lambda: all(count(*one) > earlier for one, earlier in zip(wanted, before, strict=True)))
