"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from fastapi import APIRouter, Request

from wllm_api.http_errors import NotFound
from wllm_api.routes.common import serving_of
from wllm_api.serving import Serving

router = APIRouter()


@router.get("/models")
async def list_models(request: Request) -> dict[str, object]:
    """The names that the served model goes by."""
    serving = serving_of(request)
    return {"object": "list", "data": [_model(name, serving) for name in serving.names]}


@router.get("/models/{model_id:path}")
async def retrieve_model(request: Request, model_id: str) -> dict[str, object]:
    """One of them; ids may hold slashes."""
    serving = serving_of(request)
    if model_id not in serving.names:
        raise NotFound(
            f"The model '{model_id}' does not exist. This server has: {', '.join(serving.names)}.",
            param="model",
            code="model_not_found",
        )
    return _model(model_id, serving)


def _model(name: str, serving: Serving) -> dict[str, object]:
    info = serving.engine.info
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "wllm",
        "root": serving.names[0],
        "max_model_len": info.max_model_len if info is not None else None,
    }
