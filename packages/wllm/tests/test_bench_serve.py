"""`wllm bench serve`: what it reads from streams, what it makes of it, and the whole command against a real server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from wllm.bench.errors import BenchError
from wllm.bench.results import Report
from wllm.bench.serve_http import Answer, ConnectionLost, Server, exchange
from wllm.bench.serve_load import LoadRun, Outcome, poisson_arrivals, run_load
from wllm.bench.serve_report import Goals, ServeReport, Spread, time_per_token_ms
from wllm.bench.serve_stream import Stream
from wllm.cli import main
from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.testing import running_server


def chunk(**choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}, separators=(",", ":")).encode() + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
CHAT = [
    chunk(delta={"role": "assistant", "content": ""}),
    *(chunk(delta={"content": text}) for text in ("one", " two", " three")),
    b": ping\n\n",
    chunk(delta={}, finish_reason="stop"),
    USAGE,
    DONE,
]
COMPLETION = [chunk(text="one"), chunk(text=" two"), chunk(text="", finish_reason="length"), USAGE, DONE]


@pytest.mark.parametrize(("events", "brings"), [(CHAT, [1, 2, 3]), (COMPLETION, [0, 1]), ([CHAT[0], DONE], [])])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_stream_times_the_events_that_bring_tokens(events: list[bytes], brings: list[int], newline: bytes) -> None:
    stream = Stream()
    for at, event in enumerate(events):
        for byte in event.replace(b"\n", newline):
            assert stream.feed(bytes([byte]), float(at))
    stream.close()
    assert list(stream.times) == brings
    assert stream.done and stream.error is None
    if USAGE in events:
        assert (stream.prompt_tokens, stream.output_tokens) == (7, 3)


def test_stream_of_ids_without_text_counts() -> None:
    stream = Stream()
    stream.feed(chunk(text="", token_ids=[5]) + chunk(text="", token_ids=[6], finish_reason="length") + DONE, 1.0)
    stream.close()
    assert list(stream.times) == [1.0, 1.0]


@pytest.mark.parametrize("position", [0, 1, 3])
def test_stream_keeps_the_servers_error(position: int) -> None:
    events = [chunk(text="a"), chunk(text="b"), chunk(text="c")]
    events.insert(position, b'data: {"error": {"message": "out of luck"}}\n\n')
    stream = Stream()
    for event in events:
        stream.feed(event, 0.0)
    stream.close()
    assert stream.error == "out of luck"


def test_arrivals_are_poisson_and_repeatable() -> None:
    due = poisson_arrivals(5000, 4.0, 1)
    assert due == poisson_arrivals(5000, 4.0, 1) != poisson_arrivals(5000, 4.0, 2)
    gaps = [b - a for a, b in pairwise(due)]
    mean = sum(gaps) / len(gaps)
    assert due[0] == 0 and abs(mean - 0.25) < 0.02
    # An exponential distribution is as wide as its mean.
    assert abs((sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 - mean) < 0.03
    assert poisson_arrivals(3, float("inf"), 0) == [0.0, 0.0, 0.0]


def outcome(first: float, last: float, tokens: int, failure: str | None = None) -> Outcome:
    return Outcome(0.0, 0.0, last, [first, last], prompt_tokens=10, output_tokens=tokens, failure=failure)


def test_report_of_known_outcomes() -> None:
    outcomes = [outcome(0.1, 1.1, 11), outcome(0.3, 1.3, 21), outcome(0.1, 9.1, 2, "timeout"), outcome(0.2, 2.2, 3)]
    run = LoadRun(outcomes, duration_s=4.0, lags_s=array("d", [0.001] * 10), cpu_share=0.1)
    report = ServeReport.of(run, Goals(ttft_ms=250, tpot_ms=500))
    assert (report.requests, report.completed, report.failures) == (4, 3, {"timeout": 1})
    assert report.output_tokens == 35 and report.a_second(report.output_tokens) == 8.75
    assert report.ttft.percentiles[50] == pytest.approx(200)
    assert sorted(time_per_token_ms(one) or 0 for one in outcomes[:2]) == pytest.approx([50, 100])
    # The second is too late, the third failed, the fourth too slow.
    assert report.good == 1
    assert "1 of 4 requests failed" in next(report.warnings())
    assert ServeReport.of(run, Goals()).good is None


@pytest.mark.parametrize(("lag", "cpu", "warned"), [(0.001, 0.2, False), (0.05, 0.2, True), (0.001, 0.99, True)])
def test_a_client_that_cannot_keep_up_says_so(lag: float, cpu: float, warned: bool) -> None:
    run = LoadRun([outcome(0.1, 1.1, 11)], duration_s=1.0, lags_s=array("d", [lag] * 50), cpu_share=cpu)
    assert any("bottleneck" in text for text in ServeReport.of(run, Goals()).warnings()) == warned


def test_percentiles_are_linear_between_ranks() -> None:
    spread = Spread.of([float(value) for value in range(100, -1, -1)])
    assert spread.percentiles == {50: 50.0, 90: 90.0, 99: 99.0}
    assert Spread.of([1.0, 2.0]).percentiles[90] == pytest.approx(1.9)
    assert Spread.of([]).percentiles == {}


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_a_url_that_names_no_server_is_refused(url: str) -> None:
    with pytest.raises(BenchError, match="names no server"):
        Server.at(url)


def test_url_with_and_without_v1() -> None:
    assert Server.at("http://127.0.0.1:8000/v1/") == Server.at("http://127.0.0.1:8000") == Server("127.0.0.1", 8000)
    assert Server.at("https://host/proxy/v1", "key") == Server("host", 443, True, "/proxy", "key")


@contextmanager
def raw_server(answer: bytes, *, close: bool) -> Iterator[Server]:
    """Sends the same bytes to everyone, then closes the connection or keeps it open."""
    started = threading.Event()
    state: dict[str, object] = {}

    async def serve() -> None:
        ended = state["ended"] = asyncio.Event()
        state["loop"] = asyncio.get_running_loop()

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if not close:
                await ended.wait()
            writer.close()

        async with await asyncio.start_server(client, "127.0.0.1", 0) as server:
            state["port"] = server.sockets[0].getsockname()[1]
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield Server("127.0.0.1", int(str(state["port"])))
    finally:
        loop, ended = state["loop"], state["ended"]
        assert isinstance(loop, asyncio.AbstractEventLoop) and isinstance(ended, asyncio.Event)
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def in_chunks(*events: bytes, end: bool = True) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + (b"0\r\n\r\n" if end else b"")


@pytest.mark.parametrize(
    ("answer", "close", "failure"),
    [
        (CHUNKED + in_chunks(*COMPLETION), True, None),
        (CHUNKED + in_chunks(*COMPLETION), False, None),
        (CHUNKED + in_chunks(*COMPLETION[:2], end=False), True, "connection lost"),
        (CHUNKED + in_chunks(*COMPLETION[:2], end=False), False, "timeout"),
        (CHUNKED + in_chunks(*COMPLETION[:2]), True, "cut short"),
        (CHUNKED + in_chunks(USAGE, DONE), True, "empty"),
        (CHUNKED + in_chunks(COMPLETION[0], b'data: {"error":{"message":"no"}}\n\n'), True, "error event"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", True, "http 503"),
        (b"what?\r\n\r\n", True, "connection lost"),
    ],
)
def test_failures_have_a_kind(answer: bytes, close: bool, failure: str | None) -> None:
    with raw_server(answer, close=close) as server:
        request = server.request("POST", "/v1/completions", {})
        ended: list[Outcome] = []
        run = asyncio.run(run_load(server, [request, request], [0.0, 0.05], timeout_s=0.5, on_end=ended.append))
    assert [one.failure for one in run.outcomes] == [failure, failure]
    assert len(ended) == 2
    if failure is None:
        assert [one.output_tokens for one in run.outcomes] == [3, 3]
        assert run.outcomes[1].sent_s >= 0.05 and run.duration_s >= 0.05
    else:
        assert all(one.reason for one in run.outcomes)


def test_nobody_listens() -> None:
    with raw_server(b"", close=True) as server:
        pass
    run = asyncio.run(run_load(server, [b"GET / HTTP/1.1\r\n\r\n"], [0.0], timeout_s=5))
    assert run.outcomes[0].failure == "no connection"
    assert main(["bench", "serve", "--url", f"http://127.0.0.1:{server.port}"]) == 1


def test_hanging_up_ends_an_exchange_in_the_middle() -> None:
    with raw_server(CHUNKED + in_chunks(*COMPLETION[:2], end=False), close=False) as server:
        pieces: list[bytes] = []

        async def leave() -> Answer:
            def read(data: bytes, now: float) -> bool:
                pieces.append(data)
                return False

            return await exchange(server, server.request("GET", "/"), read)

        answer = asyncio.run(leave())
    assert answer.hung_up and answer.status == 200 and len(pieces) == 1


def test_an_exchange_that_is_cut_raises() -> None:
    with raw_server(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", close=True) as server:
        with pytest.raises(ConnectionLost):
            asyncio.run(exchange(server, server.request("GET", "/")))


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    engine = EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {"step_s": 0.02})
    with running_server(create_app([HostedModel(engine, ["scripted"])])) as url:
        yield url


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_the_command_measures_a_server(
    scripted: str, endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result ü.json"
    lengths = ["--prompt-tokens", "20", "--output-tokens", "12", "--vocab-size", "500"]
    load = ["--num-requests", "40", "--rate", "200", "--endpoint", endpoint, "--slo-ttft-ms", "60000"]
    assert main(["bench", "serve", "--url", scripted, *load, *lengths, "--json", str(file)]) == 0
    report = Report.load(file)
    values = {row.what: row.value for row in report.rows}
    assert report.engines == ["wllm"] and report.options["seed"] == 0
    load_of_it = f"scripted: 40 {endpoint}, 200 a second, 20 tokens in, 12 tokens out"
    assert {row.model for row in report.rows} == {load_of_it}
    assert values["whole answers"] == 40
    assert values["output tokens per second"] == pytest.approx(12 * values["requests per second"])
    assert values["goodput"] == pytest.approx(values["requests per second"])
    assert {"TPOT p50", "ITL p90", "the client's lag p90"} <= values.keys()
    assert values["TTFT p50"] <= values["TTFT p99"] <= values["E2E p99"]
    # A token is a step, and a step takes 2 ms at least.
    assert values["E2E p50"] >= 12 * 2
    shown = capsys.readouterr().out
    assert "40 of 40 requests answered" in shown and "TTFT" in shown


def test_it_runs_without_a_console(scripted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "result.json"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        flags = ["--num-requests", "4", "--prompt-tokens", "8", "--output-tokens", "4", "--vocab-size", "500"]
        code = main(["bench", "serve", "--url", scripted, *flags, "--json", str(file)])
    assert code == 0
    assert {row.what: row.value for row in Report.load(file).rows}["whole answers"] == 4


def test_concurrency_is_limited(scripted: str) -> None:
    server = Server.at(scripted)
    body = {"prompt": [5, 6], "max_tokens": 20, "ignore_eos": True, "stream": True}
    requests = [server.request("POST", "/v1/completions", body)] * 6
    run = asyncio.run(run_load(server, requests, [0.0] * 6, timeout_s=60, max_concurrency=2))
    changes = sorted(change for one in run.outcomes for change in ((one.sent_s, 1), (one.sent_s + one.took_s, -1)))
    is_open, most = 0, 0
    for _, change in changes:
        is_open += change
        most = max(most, is_open)
    assert most == 2
    assert [one.failure for one in run.outcomes] == [None] * 6


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--vocab-size", "100000"], "did not answer a first request (http 400)"),
        (["--model", "other"], "does not exist"),
    ],
)
def test_a_server_that_refuses_is_named(
    scripted: str, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--url", scripted, *flags]) == 1
    assert said in capsys.readouterr().err


def test_a_server_that_still_loads_is_not_blamed_on_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    engine = EngineProcess("wllm_api.engine.scripted:create_scripted_engine", {"load_s": 60.0})
    with running_server(create_app([HostedModel(engine, ["scripted"])]), ready=False) as url:
        assert main(["bench", "serve", "--url", url]) == 1
    assert "not ready" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--rate", "0"],
        ["--rate", "x"],
        ["--num-requests", "0"],
        ["--extra-body", "[]"],
        ["--timeout-s", "-1"],
        ["--slo-ttft-ms", "0"],
        ["--slo-tpot-ms", "inf"],
    ],
)
def test_wrong_values_are_named(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "serve", *flags])
    assert stopped.value.code == 2
    assert flags[1] in capsys.readouterr().err


def test_it_loads_no_torch() -> None:
    code = "import sys, wllm.bench.serve; print(sorted({'torch', 'transformers', 'httpx'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
