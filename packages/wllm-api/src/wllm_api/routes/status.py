"""GET /health, /ping, /version and /metrics: what probes and dashboards read."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from wllm_api.routes.common import serving_of
from wllm_api.version import package_version

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    """200 with an empty body when requests are taken, else 503."""
    serving = serving_of(request)
    if not serving.ready:
        raise serving.not_ready()
    return Response(status_code=200)


@router.api_route("/ping", methods=["GET", "POST"], include_in_schema=False)
async def ping(request: Request) -> Response:
    """The same under the name that some clouds probe."""
    return await health(request)


@router.get("/version")
async def version() -> dict[str, str]:
    """The server's version."""
    return {"version": package_version()}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All series in the Prometheus text format."""
    encoder, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encoder(serving_of(request).metrics.registry), headers={"Content-Type": content_type})
