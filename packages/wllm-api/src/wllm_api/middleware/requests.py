"""Opens a record for every request; when it has ended, a line of the log, the metrics and the tracer tell of it.

The line has the id, the route, the status, token counts and times; nothing that the request or the answer said. The
status is 499 where the client went before there was an answer.
"""

from __future__ import annotations

import logging
from time import perf_counter

from starlette.types import ASGIApp, Receive, Scope, Send

from wllm_api.metrics import Metrics
from wllm_api.record import RequestRecord, open_record
from wllm_api.tracing import RequestTracer

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
# Asked for every few seconds by machines.
QUIET_PATHS = frozenset({"/health", "/ping", "/metrics"})
# The path of an unknown route is the client's own text.
UNKNOWN_ROUTE = "(unknown)"


class Requests:
    """Outside of `Identity`, which leaves the id and the status in `scope["state"]`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracer: RequestTracer | None = None) -> None:
        self.app = app
        self.metrics = metrics
        self.tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        record = open_record()
        span = self.tracer.begin(record, scope) if self.tracer is not None else None
        try:
            await self.app(scope, receive, send)
        finally:
            record.at_end.close()
            status = state.get("status", CLIENT_GONE)
            route = route_of(scope)
            duration_s = perf_counter() - record.started
            self.metrics.count_request(record.served_by, route, scope["method"], status, duration_s)
            if span is not None:
                span.end(record, route, status, state["request_id"])
            level = logging.DEBUG if route in QUIET_PATHS else logging.INFO
            if logger.isEnabledFor(level):
                logger.log(level, "%s", line_of(record, scope["method"], route, status, state["request_id"]))


def route_of(scope: Scope) -> str:
    """The declared path of the route that took the request, with the names of its parameters in their places."""
    path: str = scope["path"]
    route = scope.get("route")
    if route is None:
        # What was refused in front of the router, for its key or its rate, is told by the name of a route without any.
        return path if path in scope["app"].openapi()["paths"] else UNKNOWN_ROUTE
    declared: str = route.path_format
    if route.path_regex.match(path):
        return declared
    # It may not know the prefix that its router was included with: one part, and not the client's own text, since it
    # was found by it.
    return f"/{path.split('/')[1]}{declared}"


def line_of(record: RequestRecord, method: str, route: str, status: int, request_id: str) -> str:
    """The line of the log; the id is last, because it may be a client's own, with spaces."""
    parts = [method, route, str(status)]
    if record.num_prompt_tokens:
        parts.append(f"prompt={record.num_prompt_tokens}")
        parts.append(f"cached={record.num_cached_tokens}")
    if record.finish_reasons:
        parts.append(f"generated={record.num_generated_tokens}")
        parts.append(f"finish={','.join(dict.fromkeys(record.finish_reasons))}")
        first = record.times[0]
        if first.queue_s is not None:
            parts.append(f"queue={first.queue_s:.3f}s")
        if first.first_token_s is not None:
            parts.append(f"first_token={first.first_token_s:.3f}s")
    parts.append(f"total={perf_counter() - record.started:.3f}s")
    return " ".join([*parts, f"id={request_id}"])
