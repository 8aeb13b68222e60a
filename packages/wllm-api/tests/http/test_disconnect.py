"""R33, R35: nothing runs on for a client that has gone, and one that does not read costs little."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from wllm_api.protocol import PromptProtocol
from wllm_api.settings import Limits
from wllm_api.testing import wait_until

LONG = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True}


def gauge(client: httpx.Client, name: str) -> float:
    text = client.get("/metrics").text
    line = next(line for line in text.splitlines() if line.startswith(f"wllm:{name}{{"))
    return float(line.rpartition(" ")[2])


def idle(client: httpx.Client) -> bool:
    return all(
        gauge(client, name) == 0 for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    )


def raw_request(body: dict[str, Any], *headers: str, path: str = "/v1/completions") -> bytes:
    """A whole HTTP request, to be sent by hand."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


def opened(client: httpx.Client, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A raw connection with the request sent, so that closing it is really closing it."""
    sock = socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=20)
    sock.sendall(raw_request(body, path=path))
    return sock


def not_reading(client: httpx.Client, body: dict[str, Any]) -> socket.socket:
    """The same with a small receive buffer, that soon holds the sender up."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(30)
    sock.connect(("127.0.0.1", client.base_url.port))
    sock.sendall(raw_request(body, "Connection: close"))
    return sock


def aborted(client: httpx.Client) -> float:
    text = client.get("/metrics").text
    return float(next(line for line in text.splitlines() if 'finished_reason="abort"' in line).rpartition(" ")[2])


@pytest.fixture(scope="module")
def slow(start_server: Any) -> Iterator[Any]:
    """A server whose steps and answers take a while, with room for four requests."""
    with start_server(step_s=0.01, max_num_seqs=4, reply="a" * 3000) as client:
        yield client


HI = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": LONG,
    "/v1/chat/completions": {"messages": HI},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 3000},
    "/api/chat": {"model": "scripted", "messages": HI},
    "/api/generate": {"model": "scripted", "prompt": "Hi"},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ROUTES)
def test_running_request_ends_with_its_client(slow: httpx.Client, path: str, stream: bool) -> None:
    with closing(opened(slow, {**ROUTES[path], "stream": stream}, path)) as sock:
        if stream:
            sock.recv(1000)
        wait_until(lambda: gauge(slow, "num_requests_running") == 1)
    wait_until(lambda: idle(slow), 5)


@pytest.mark.parametrize("stream", [True, False])
def test_waiting_request_ends_with_its_client(slow: httpx.Client, stream: bool) -> None:
    running = [opened(slow, LONG) for _ in range(4)]
    wait_until(lambda: gauge(slow, "num_requests_running") == 4)
    waiting = opened(slow, {**LONG, "stream": stream})
    wait_until(lambda: gauge(slow, "num_requests_waiting") == 1)
    waiting.close()
    wait_until(lambda: gauge(slow, "num_requests_waiting") == 0, 5)
    assert gauge(slow, "num_requests_running") == 4
    for sock in running:
        sock.close()
    wait_until(lambda: idle(slow), 5)


def test_all_prompts_and_samples_end(slow: httpx.Client) -> None:
    with closing(opened(slow, {**LONG, "prompt": ["a", "b", "c"], "n": 2, "stream": True})) as sock:
        sock.recv(1000)
        wait_until(lambda: gauge(slow, "num_requests_waiting") == 2)
    wait_until(lambda: idle(slow), 5)


def test_aborts_are_counted(slow: httpx.Client) -> None:
    before = aborted(slow)
    opened(slow, {**LONG, "stream": True}).close()
    wait_until(lambda: aborted(slow) == before + 1 and idle(slow), 5)


def test_two_hundred_clients_that_go(start_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    with start_server(step_s=0.01, max_num_seqs=64) as client:
        for _ in range(4):
            socks = [opened(client, {**LONG, "stream": True}) for _ in range(50)]
            for sock in socks:
                assert sock.recv(200)
            for sock in socks:
                sock.close()
        wait_until(lambda: idle(client), 15)
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_stop_string_ends_the_sample_in_the_engine(slow: httpx.Client) -> None:
    body = {**LONG, "temperature": 0, "stop": ["aaa"]}
    assert slow.post("/v1/completions", json=body).json()["choices"][0]["finish_reason"] == "stop"
    wait_until(lambda: idle(slow), 5)


def test_full_queue(start_server: Any) -> None:
    with start_server(limits=Limits(max_waiting=2), step_s=0.01, max_num_seqs=1) as client:
        socks = [opened(client, {**LONG, "stream": True})]
        socks[0].recv(200)
        socks += [opened(client, LONG) for _ in range(2)]
        wait_until(lambda: gauge(client, "num_requests_waiting") == 2)
        for stream in (False, True):
            answer = client.post("/v1/completions", json={"prompt": "Hi", "stream": stream})
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "server_is_overloaded"
        for sock in socks:
            sock.close()
        wait_until(lambda: idle(client), 5)
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200


def test_slow_reader_gets_everything_and_slows_nobody(start_server: Any) -> None:
    body = {**LONG, "temperature": 0}
    with start_server() as client, closing(not_reading(client, {**body, "stream": True, "logprobs": 20})) as sock:
        wait_until(lambda: gauge(client, "generation_tokens_total") == 3000)
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
        got = bytearray()
        while piece := sock.recv(65536):
            got += piece
        text = unchunked(bytes(got.partition(b"\r\n\r\n")[2])).decode()
        assert text.count("data: [DONE]") == 1
        chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        assert sum(len(chunk["choices"][0]["logprobs"]["tokens"]) for chunk in chunks) == 3000
        whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
        # It read nothing for a while, so tokens were put together instead of piling up one by one.
        assert len(chunks) < 3000


def test_reader_of_single_bytes_costs_little_memory(start_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not read waits as tokens, not as bytes, and others' answers do not wait for it."""
    transports: list[Any] = []
    take = PromptProtocol.connection_made

    def watched(protocol: PromptProtocol, transport: Any) -> None:
        transports.append(transport)
        take(protocol, transport)

    monkeypatch.setattr(PromptProtocol, "connection_made", watched)
    body = {**LONG, "max_tokens": 20_000, "logprobs": 20, "stream": True}  # some 30 MB
    with start_server(max_model_len=30_000) as client, closing(not_reading(client, body)) as sock:
        most = 0

        def all_generated() -> bool:
            nonlocal most
            sock.recv(1)
            most = max(most, *(transport.get_write_buffer_size() for transport in transports))
            return gauge(client, "generation_tokens_total") >= 20_000

        wait_until(all_generated, 60)
        assert 0 < most < 1_500_000
        for _ in range(3):
            assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200


def test_reader_that_never_reads_is_dropped(start_server: Any) -> None:
    limits = Limits(stalled_client_s=0.5, ping_interval_s=0.4)
    body = {**LONG, "max_tokens": 90_000, "logprobs": 20, "stream": True}
    # What the engine has written before it hears of the end is read first: that must not be many messages.
    pace = {"step_s": 0.004, "tokens_per_step": 16}
    with start_server(limits=limits, max_model_len=100_000, **pace) as client, closing(not_reading(client, body)):
        wait_until(lambda: aborted(client) == 1)
        wait_until(lambda: idle(client), 5)


def test_body_that_is_never_finished(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    sock = socket.create_connection(("127.0.0.1", client.base_url.port or 0))
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    time.sleep(0.05)
    sock.close()
    assert client.get("/health").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_concurrent_streams_do_not_mix(client: httpx.Client) -> None:
    bodies = [{"prompt": "x" * number, "temperature": 0, "max_tokens": 60} for number in range(1, 33)]
    alone = [client.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in bodies]
    together: dict[int, str] = {}

    def ask(number: int) -> None:
        answer = httpx.post(f"{client.base_url}/v1/completions", json=bodies[number], timeout=30)
        together[number] = answer.json()["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(len(bodies))] == alone


def unchunked(body: bytes) -> bytes:
    """The content of a chunked HTTP body."""
    content = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        content += body[:length]
        body = body[length + 2 :]
    return bytes(content)
