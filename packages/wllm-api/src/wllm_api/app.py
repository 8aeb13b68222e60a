"""Builds the ASGI application around the engines of its models.

The application owns their lives: it starts the first when the server starts (requests get a 503 until it is ready),
the others when they are asked for, and stops them at the end. `wllm_api.server.serve` runs the application; any ASGI
server can.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Match

from wllm_api.api_keys import checked_keys
from wllm_api.disconnect import ClientGone, end
from wllm_api.error_bodies import refusal_response
from wllm_api.hosting import HostedModel
from wllm_api.http_errors import HttpError, InvalidRequest, MethodNotAllowed, NotFound, RepeatedModelName
from wllm_api.metrics import Metrics
from wllm_api.middleware.faults import Faults
from wllm_api.middleware.hosts import Hosts
from wllm_api.middleware.identity import Identity
from wllm_api.middleware.keys import Keys
from wllm_api.middleware.origins import Origins
from wllm_api.middleware.paths import Paths
from wllm_api.middleware.rates import Rates
from wllm_api.middleware.requests import Requests
from wllm_api.openapi import describe_bodies
from wllm_api.routes import (
    chat,
    completions,
    docs,
    embeddings,
    messages,
    ollama,
    ollama_embed,
    ollama_models,
    rerank,
    responses,
    sleep,
    status,
    tokens,
)
from wllm_api.routes import models as model_list
from wllm_api.serving import Serving
from wllm_api.settings import Access, Limits
from wllm_api.tracing import RequestTracer
from wllm_api.version import package_version
from wllm_sched.messages import ModelInfo

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def create_app(
    models: Sequence[HostedModel],
    *,
    max_loaded: int = 1,
    access: Access | None = None,
    limits: Limits | None = None,
    metrics_prefix: str = "wllm:",
    tracer: RequestTracer | None = None,
    on_ready: Callable[[ModelInfo | None], None] | None = None,
) -> FastAPI:
    """The application; the first of `models` is loaded when the server starts, the others when a request names them.

    At most `max_loaded` are loaded at a time. `tracer` is closed at the end of the application. `on_ready` is called
    once, when the first model is loaded, with None when others must do without it. Raises `UnusableKey` or
    `RepeatedModelName`.
    """
    access = access or Access()
    repeated = [name for name, count in Counter(name for model in models for name in model.names).items() if count > 1]
    if repeated:
        raise RepeatedModelName(
            f"Two models are called '{repeated[0]}'. Give each a name of its own, as a --models-file does."
        )
    serving = Serving(
        models,
        access=access,
        limits=limits or Limits(),
        metrics=Metrics({model.name: model.engine for model in models}, metrics_prefix),
        max_loaded=max_loaded,
    )
    app = FastAPI(
        title="wLLM",
        version=package_version(),
        # Their pages load scripts from a foreign server; `routes.docs` has one that needs none.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        middleware=[
            Middleware(Requests, metrics=serving.metrics, tracer=tracer),
            Middleware(Identity),
            Middleware(Faults),
            Middleware(Hosts, allowed=access.allowed_hosts),
            Middleware(Origins, allowed=access.allowed_origins),
            # Once more, so that refusals from here on carry what Origins adds, and pages can read them.
            Middleware(Faults),
            Middleware(Paths),
            Middleware(Keys, keys=checked_keys(access.api_keys)),
            Middleware(Rates, per_minute=serving.limits.requests_per_minute),
        ],
        exception_handlers={
            HttpError: _refusal,
            HTTPException: _routing_error,
            RequestValidationError: _wrong_parameter,
            ClientGone: _nobody,
        },
    )
    app.state.serving = serving
    app.state.on_ready = on_ready
    app.state.tracer = tracer
    for router in (part.router for part in (chat, completions, embeddings, messages, model_list, rerank, responses)):
        app.include_router(router, prefix="/v1")
        # Some clients are given the address without /v1.
        app.include_router(router, include_in_schema=False)
    app.include_router(rerank.cohere, prefix="/v2")
    app.include_router(tokens.router)
    app.include_router(sleep.router)
    app.include_router(status.router)
    app.include_router(docs.router)
    for router in (ollama.router, ollama_embed.router, ollama_models.router):
        app.include_router(router, prefix="/api")
    app.include_router(ollama_models.root)
    describe_bodies(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    serving: Serving = app.state.serving
    # Now, while the model loads: the first request that needs it would hold up the others for a tenth of a second.
    app.openapi()
    loading = asyncio.create_task(_prepare(serving, app.state.on_ready))
    try:
        yield
    finally:
        await end(loading)
        await serving.residency.stop()
        tracer: RequestTracer | None = app.state.tracer
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


async def _prepare(serving: Serving, on_ready: Callable[[ModelInfo | None], None] | None) -> None:
    await serving.residency.start()
    if on_ready is not None and serving.fatal is None:
        on_ready(serving.models[0].info)


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError), "registered for HttpError only"
    return refusal_response(error, request.scope)


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException only"
    path = request.url.path
    refusal: HttpError
    if error.status_code == 404:
        hint = _surplus(request) or "/docs and /openapi.json list those that there are."
        refusal = NotFound(f"There is no route {request.method} {path}. {hint}")
    elif error.status_code == 405:
        taken = _methods(request)
        refusal = MethodNotAllowed(f"The route {path} does not take {request.method}. Use {' or '.join(taken)}.")
        refusal.headers["Allow"] = ", ".join(taken)
        return refusal_response(refusal, request.scope)
    else:
        refusal = InvalidRequest(f"The request cannot be taken: {error.detail}.")
    refusal.headers |= error.headers or {}
    return refusal_response(refusal, request.scope)


async def _wrong_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for RequestValidationError only"
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return refusal_response(InvalidRequest(f"'{name}': {first['msg']}.", param=name), request.scope)


def _surplus(request: Request) -> str | None:
    """What to take off the client's base URL, where the path is a route behind more than that, such as a second /v1."""
    path = request.url.path
    # A base URL has a few parts; a path may have thousands, and each try goes through all routes.
    cuts = [cut.start() for cut in islice(re.finditer("/", path), 1, 6)]
    for cut in cuts:
        if cut + 1 < len(path) and _is_route(request, request.method, path[cut:]):
            return f"{path[cut:]} is one: take {path[:cut]} off the end of the client's base URL."
    return None


def _methods(request: Request) -> list[str]:
    # Several routes may share a path; the router names the methods of the first one only.
    return [method for method in METHODS if _is_route(request, method, request.url.path)]


def _is_route(request: Request, method: str, path: str) -> bool:
    kept = {name: request.scope[name] for name in ("type", "root_path", "headers", "app") if name in request.scope}
    scope = {**kept, "method": method, "path": path}
    return any(route.matches(scope)[0] == Match.FULL for route in request.app.router.routes)


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
