"""Whatever bytes come, the answer is no fault of ours, comes soon, and nothing of the server is lost by it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from robustness.fuzz_cases import UNKNOWN_METHOD, Case, case
from robustness.live_server import LiveServer

from wllm_api.error_bodies import is_anthropic
from wllm_api.openapi import BODIES
from wllm_sched.messages import Task

ALL = 10_000
AGAIN = 3_000
MOST_GROWTH_MIB = 16
POOLING = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score", "/api/embed", "/api/embeddings", "/tokenize")
# What each kind of server is shot at with; of the generator's routes those that it refuses are a part.
PATHS: dict[Task, tuple[str, ...]] = {
    "generate": tuple(BODIES),
    "embed": POOLING,
    "score": ("/v1/rerank", "/v2/rerank", "/v1/score"),
}
ANSWERED: dict[Task, set[str]] = {
    "generate": {path for path in BODIES if path not in POOLING} | {"/tokenize"},
    "embed": set(POOLING),
    "score": set(PATHS["score"]),
}


@pytest.fixture(scope="module", params=PATHS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("fuzz"), request.param) as running:
        yield running


def refuse(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


def check(sent: Case, answer: httpx.Response) -> None:
    assert answer.status_code < 500, f"{answer.status_code} {answer.text}\n{sent}"
    assert answer.headers["x-request-id"], str(sent)
    if sent.method == "HEAD" or not answer.content:
        return
    kind = answer.headers["content-type"].partition(";")[0]
    if kind == "application/json":
        data = json.loads(answer.content, parse_constant=refuse)
        assert ("error" in data) == (answer.status_code >= 400) or "error" in data, f"{answer.text}\n{sent}"
        if answer.status_code >= 400:
            check_error(sent, data["error"])
    elif kind in ("text/event-stream", "application/x-ndjson"):
        check_events(sent, answer.text)


def check_error(sent: Case, error: object) -> None:
    # Of what is no HTTP the server does not know the path.
    if sent.path.lstrip("/").startswith("api/") and sent.method != UNKNOWN_METHOD:
        assert isinstance(error, str) and error, str(sent)
        return
    assert isinstance(error, dict) and error["message"] and error["type"] != "server_error", f"{error}\n{sent}"
    if not is_anthropic(sent.path):
        assert error.keys() == {"message", "type", "param", "code"}, f"{error}\n{sent}"


def check_events(sent: Case, text: str) -> None:
    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if line.startswith(("data: {", "{")):
            event = json.loads(data, parse_constant=refuse)
            assert not isinstance(event, dict) or not event.get("error"), f"{line}\n{sent}"


def run(server: LiveServer, numbers: range) -> set[tuple[str, int]]:
    """Send the cases; the (route, status) pairs that were seen."""
    seen = set()
    for number in numbers:
        sent = case(number, PATHS[server.task])
        try:
            answer = server.send(sent)
        except httpx.TimeoutException:
            raise AssertionError(f"no answer in time: {sent}") from None
        check(sent, answer)
        seen.add((sent.path, answer.status_code))
        if number % 500 == 0:
            server.check_alive()
    server.check_alive()
    return seen


def test_sample(server: LiveServer) -> None:
    paths = PATHS[server.task]
    seen = run(server, range(40 * len(paths)))
    # Cases that never get behind the schema would prove little.
    assert {path for path in paths if (path, 400) in seen} == set(paths)
    assert ANSWERED[server.task] <= {path for path, status in seen if status == 200}


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_all(server: LiveServer) -> None:
    num = ALL if server.task == "generate" else ALL // 4
    run(server, range(num))
    # The longest prompts have raised the allocator's high-water mark by now; what grows from here on is lost.
    before = server.memory()
    run(server, range(num - AGAIN if num > AGAIN else 0, num))
    grown = [after - earlier for earlier, after in zip(before, server.memory())]
    assert max(grown) < MOST_GROWTH_MIB, f"server and engine grew by {grown} MiB"
