"""OpenTelemetry traces, by the extra `wllm-api[otel]`, switched on by the standard OTEL_* environment.

A request is one span under the trace of its client (`traceparent`), with spans for the queue, the prefill, the decoding
as a whole, every 16th decode step and the detokenising of that step. All are made when the request has ended, from
times that were taken anyway. Unless it is switched on nothing of OpenTelemetry's SDK is imported, and nothing noted.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from starlette.types import Scope

from wllm_api.http_errors import UnusableTracing
from wllm_api.record import RequestRecord, Steps

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTERS = ("otlp", "console")
PROTOCOL = "http/protobuf"


class RequestSpan(Protocol):
    """The trace of one request."""

    def end(self, record: RequestRecord, route: str, status: int, request_id: str) -> None:
        """End it, now."""


class RequestTracer(Protocol):
    """Whoever traces requests."""

    def begin(self, record: RequestRecord, scope: Scope) -> RequestSpan:
        """Begin the trace of a request; asks the record for steps if they are wanted."""

    def close(self) -> None:
        """Send what is left."""


def tracer_from_environment(environment: Mapping[str, str] = os.environ) -> RequestTracer | None:
    """The tracer that the OTEL_* variables ask for, None for none; raises `UnusableTracing`."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "")
    wanted = bool(exporter) or any(environment.get(name) for name in ENDPOINTS)
    if not wanted or exporter == "none" or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if exporter not in ("", *EXPORTERS):
        raise UnusableTracing(f"OTEL_TRACES_EXPORTER is '{exporter}'. Use one of: {', '.join(EXPORTERS)}, none.")
    protocol = next(filter(None, map(environment.get, PROTOCOLS)), PROTOCOL)
    if protocol != PROTOCOL:
        raise UnusableTracing(f"The OTLP protocol asked for by OTEL_* is '{protocol}'. Use {PROTOCOL}.")
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise UnusableTracing(
            "OTEL_* variables ask for traces, but OpenTelemetry is not installed. Install wllm-api[otel] or unset them."
        )
    return OpenTelemetryTracer(_provider(console=exporter == "console"))


def _provider(*, console: bool) -> TracerProvider:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    exporter: SpanExporter
    if console:
        exporter = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "wllm"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class OpenTelemetryTracer:
    """Traces requests through `provider`, which it shuts down at the end."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("wllm_api")

    def begin(self, record: RequestRecord, scope: Scope) -> RequestSpan:
        """A span under that of the client's `traceparent`, if it sent one."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        context = TraceContextTextMapPropagator().extract(carrier)
        span = self._tracer.start_span(scope["method"], context, SpanKind.SERVER)
        if span.is_recording():
            record.steps = Steps()
        return _OpenTelemetrySpan(self, span)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def child(self, parent: Span, name: str, begin_s: float, end_s: float, attributes: Mapping[str, int]) -> None:
        """A span inside of `parent` between two times of `perf_counter`."""
        from opentelemetry.trace import set_span_in_context

        offset = time.time_ns() - time.perf_counter_ns()
        start, end = (offset + int(at * 1e9) for at in (begin_s, end_s))
        span = self._tracer.start_span(name, set_span_in_context(parent), attributes=attributes, start_time=start)
        span.end(end)


class _OpenTelemetrySpan:
    def __init__(self, tracer: OpenTelemetryTracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def end(self, record: RequestRecord, route: str, status: int, request_id: str) -> None:
        from opentelemetry.trace import StatusCode

        span = self._span
        if not span.is_recording():
            return
        span.update_name(route)
        span.set_attributes({
            "http.route": route, "http.response.status_code": status, "gen_ai.request.id": request_id,
            "gen_ai.usage.input_tokens": record.num_prompt_tokens,
            "gen_ai.usage.output_tokens": record.num_generated_tokens,
            "gen_ai.response.finish_reasons": record.finish_reasons,
        })  # fmt: skip
        if record.model is not None:
            span.set_attribute("gen_ai.request.model", record.model)
        if status >= 500 or "error" in record.finish_reasons:
            span.set_status(StatusCode.ERROR)
        for choice, times in enumerate(record.times):
            at = {"choice": choice}
            if times.queue_s is not None and times.prefill_s is not None:
                has_slot = times.start + times.queue_s
                self._tracer.child(span, "queue", times.start, has_slot, at)
                self._tracer.child(span, "prefill", has_slot, has_slot + times.prefill_s, at)
            if times.first is not None:
                self._tracer.child(span, "decode", times.first, times.last, at)
        for step in record.steps.sampled if record.steps is not None else ():
            which = {"choice": step.choice, "step": step.number}
            self._tracer.child(span, "decode step", step.before, step.arrived, which)
            self._tracer.child(span, "detokenise", step.arrived, step.text_ready, which)
        span.end()
