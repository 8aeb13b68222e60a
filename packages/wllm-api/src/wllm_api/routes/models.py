"""GET /v1/models and GET /v1/models/{id}; Anthropic's clients, told by their version header, get Anthropic's shape."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Request

from wllm_api.routes.common import serving_of

router = APIRouter()


@router.get("/models")
async def list_models(request: Request) -> dict[str, object]:
    """The names that the models go by, loaded or not."""
    serving = serving_of(request)
    data = [_model(name, request) for name in serving.names]
    if _from_anthropic(request):
        return {"data": data, "has_more": False, "first_id": serving.names[0], "last_id": serving.names[-1]}
    return {"object": "list", "data": data}


@router.get("/models/{model_id:path}")
async def retrieve_model(request: Request, model_id: str) -> dict[str, object]:
    """One of them; ids may hold slashes."""
    serving_of(request).hosted(model_id)
    return _model(model_id, request)


def _from_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _model(name: str, request: Request) -> dict[str, object]:
    serving = serving_of(request)
    hosted = serving.hosted(name)
    info = hosted.info
    if _from_anthropic(request):
        return {
            "id": name,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(serving.created, UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": info.max_model_len if info is not None else None,
        }
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "wllm",
        "root": hosted.name,
        "max_model_len": info.max_model_len if info is not None else None,
        "task": info.task if info is not None else None,
    }
