"""OpenTelemetry traces, seen through the exporter that keeps them in memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from wllm_api.app import create_app
from wllm_api.engine import EngineProcess
from wllm_api.hosting import HostedModel
from wllm_api.http_errors import UnusableTracing
from wllm_api.record import SAMPLED_EVERY
from wllm_api.testing import running_server, wait_until
from wllm_api.tracing import OpenTelemetryTracer, tracer_from_environment

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra wllm-api[otel] is not installed")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")

FACTORY = "wllm_api.engine.scripted:create_scripted_engine"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "sesame"


class Traced:
    """A server whose spans are kept, and its client."""

    def __init__(self, client: httpx.Client, exporter: Any) -> None:
        self.client = client
        self._exporter = exporter

    def spans(self, path: str, body: dict[str, Any], **headers: str) -> list[Any]:
        """The spans of one request, the outermost last."""
        self._exporter.clear()
        self.client.post(path, json=body, headers=headers)
        wait_until(lambda: any(span.name == path for span in self._exporter.get_finished_spans()), 10)
        return list(self._exporter.get_finished_spans())


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    # Slow enough that each token is a step of its own.
    app = create_app(
        [HostedModel(EngineProcess(FACTORY, {"step_s": 0.005}), ["scripted"])],
        tracer=OpenTelemetryTracer(provider),
    )
    with running_server(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield Traced(client, exporter)


@pytest.mark.parametrize("stream", [False, True])
def test_spans_of_a_request(traced: Traced, stream: bool) -> None:
    num_tokens = 2 * SAMPLED_EVERY + 4
    body = {"prompt": SECRET, "max_tokens": num_tokens, "ignore_eos": True, "stream": stream}
    spans = traced.spans("/v1/completions", body, traceparent=f"00-{TRACE}-{PARENT}-01")
    root = spans[-1]
    assert (f"{root.parent.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE, PARENT)
    assert root.attributes["gen_ai.usage.output_tokens"] == num_tokens
    assert root.attributes["gen_ai.request.model"] == "scripted"
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert root.attributes["http.response.status_code"] == 200
    names = [span.name for span in spans[:-1]]
    assert names[:3] == ["queue", "prefill", "decode"]
    assert 1 <= names.count("decode step") == names.count("detokenise") <= 2
    for span in spans[:-1]:
        assert span.parent.span_id == root.context.span_id
        # Two clocks: the engine's share of the time is told by the engine.
        slack = 5_000_000
        assert root.start_time - slack <= span.start_time <= span.end_time <= root.end_time + slack
    assert SECRET not in "".join(span.to_json() for span in spans)


def test_each_answer_has_its_spans(traced: Traced) -> None:
    spans = traced.spans("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "n": 3})
    choices = sorted(span.attributes["choice"] for span in spans if span.name == "decode")
    assert choices == [0, 1, 2]


def test_refused_request_is_a_span_too(traced: Traced) -> None:
    (span,) = traced.spans("/v1/completions", {"prompt": SECRET, "n": 0}, traceparent="nonsense")
    assert span.parent is None
    assert span.attributes["http.response.status_code"] == 400
    assert SECRET not in span.to_json()


def test_what_is_not_sampled_costs_no_notes() -> None:
    from wllm_api.record import RequestRecord

    tracer = OpenTelemetryTracer(sdk.TracerProvider(sampler=sampling.ALWAYS_OFF))
    record = RequestRecord()
    span = tracer.begin(record, {"type": "http", "method": "POST", "headers": []})
    assert record.steps is None
    span.end(record, "/", 200, "id")


@pytest.mark.parametrize("environment", [
    {}, {"OTEL_SERVICE_NAME": "x"}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
])  # fmt: skip
def test_off_without_a_word_from_the_environment(environment: dict[str, str]) -> None:
    assert tracer_from_environment(environment) is None


@pytest.mark.parametrize("environment", [
    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"},
    {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
    {"OTEL_TRACES_EXPORTER": "console"},
])  # fmt: skip
def test_on_by_the_environment(environment: dict[str, str]) -> None:
    tracer = tracer_from_environment(environment)
    assert isinstance(tracer, OpenTelemetryTracer)
    tracer.close()


@pytest.mark.parametrize(("environment", "words"), [
    ({"OTEL_TRACES_EXPORTER": "zipkin"}, "'zipkin'. Use one of: otlp, console, none"),
    ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "'grpc'. Use http/protobuf"),
])  # fmt: skip
def test_what_cannot_be_sent_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(UnusableTracing, match=words):
        tracer_from_environment(environment)


def test_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnusableTracing, match=r"wllm-api\[otel\]"):
        tracer_from_environment({"OTEL_TRACES_EXPORTER": "otlp"})


def test_spans_reach_a_collector(tmp_path: Path) -> None:
    """OTLP over HTTP, from a server as users start it."""
    received: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever).start()
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_SERVICE_NAME": "ours",
        }
        with (tmp_path / "log").open("wb") as log:
            command = [sys.executable, "-m", "wllm_api", "--port", "0"]
            server = subprocess.Popen(command, env=environment, stderr=log)
        try:
            wait_until(lambda: "listening on" in (tmp_path / "log").read_text(encoding="utf-8"))
            found = re.search(r"listening on (http://\S+)/v1", (tmp_path / "log").read_text(encoding="utf-8"))
            assert found is not None
            wait_until(lambda: httpx.get(f"{found[1]}/health").status_code == 200)
            httpx.post(f"{found[1]}/v1/completions", json={"prompt": SECRET, "max_tokens": 3})
            wait_until(lambda: any(b"/v1/completions" in body and b"prefill" in body for _, body in received))
        finally:
            server.kill()
            server.wait()
            collector.shutdown()
    assert {path for path, _ in received} == {"/v1/traces"}
    assert all(b"ours" in body and SECRET.encode() not in body for _, body in received)


def test_nothing_of_it_is_loaded_without_it() -> None:
    program = (
        "import sys; import wllm_api.app; from wllm_api.tracing import tracer_from_environment; "
        "assert tracer_from_environment({}) is None; "
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=60)
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr
