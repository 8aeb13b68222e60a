"""Ollama's /api/tags, /api/show, /api/ps, /api/version, and its routes that this server refuses.

Nothing here touches the disk or the network: a server serves the model it was started with, whatever a request says.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from wllm_api.answers.ollama import timestamp
from wllm_api.bodies import body_of
from wllm_api.http_errors import InvalidRequest, NotFound
from wllm_api.model import ServedModel
from wllm_api.routes.common import serving_of
from wllm_api.schemas.ollama import ShowRequest
from wllm_api.serving import Serving
from wllm_api.tool_offer import can_call
from wllm_api.version import package_version
from wllm_sched.messages import ModelInfo

router = APIRouter()
root = APIRouter(include_in_schema=False)

# Clients refuse servers that seem too old, so this is the release of Ollama whose API is spoken, not our own.
OLLAMA_VERSION = "0.12.11"
LATEST = ":latest"
NEVER = "9999-12-31T23:59:59Z"
_LEVELS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def served_name(serving: Serving, wanted: str) -> str:
    """The served name that a client means, with or without ":latest"; raises `NotFound`."""
    for name in serving.names:
        if wanted in (name, name + LATEST) or wanted + LATEST == name:
            return name
    raise NotFound(
        f"model '{wanted}' not found. This server has: {', '.join(serving.names)}.",
        param="model",
        code="model_not_found",
    )


@root.api_route("/", methods=["GET", "HEAD"])
async def is_running() -> Response:
    """What Ollama's clients, and people with a browser, ask first: whether anything answers at all."""
    return Response("wLLM is running; its routes are at /docs", media_type="text/plain")


@router.head("/version", include_in_schema=False)
@router.get("/version")
async def version() -> dict[str, str]:
    """The release of Ollama whose API this is, and the server's own version."""
    return {"version": OLLAMA_VERSION, "wllm_version": package_version()}


@router.head("/tags", include_in_schema=False)
@router.get("/tags")
async def tags(request: Request) -> dict[str, object]:
    """The names that the served model goes by."""
    serving = serving_of(request)
    return {"models": [_listed(name, serving) for name in serving.names]}


@router.get("/ps")
async def running(request: Request) -> dict[str, object]:
    """The model in memory, once it is there; it stays."""
    serving = serving_of(request)
    info = serving.engine.info
    if info is None or not serving.ready:
        return {"models": []}
    loaded = {
        "expires_at": NEVER,
        "size_vram": info.weight_bytes if info.device.startswith("cuda") else 0,
        "context_length": info.max_model_len,
    }
    listed = [_listed(name, serving) | loaded for name in serving.names]
    for one in listed:
        del one["modified_at"]
    return {"models": listed}


@router.post("/show")
async def show(request: Request, body: Annotated[ShowRequest, Depends(body_of(ShowRequest))]) -> dict[str, object]:
    """What is known of the model."""
    serving = serving_of(request)
    name = served_name(serving, body.model or body.name)
    model = await serving.model(name, tasks=None)
    info = model.info
    family = _family(info)
    return {
        "modelfile": "",
        "parameters": "\n".join(_parameters(info)),
        "template": info.chat_template or "",
        "details": _details(info),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": info.num_parameters,
            f"{family}.context_length": info.max_model_len,
            f"{family}.vocab_size": info.vocab_size,
        },
        "capabilities": _capabilities(model),
        "modified_at": timestamp(serving.created),
    }


@router.post("/pull", include_in_schema=False)
@router.post("/push", include_in_schema=False)
@router.post("/create", include_in_schema=False)
@router.post("/copy", include_in_schema=False)
@router.delete("/delete", include_in_schema=False)
@router.post("/blobs/{digest}", include_in_schema=False)
@router.head("/blobs/{digest}", include_in_schema=False)
async def manage(request: Request) -> None:
    """Refused: what a server serves is decided where it is started."""
    raise InvalidRequest(
        f"{request.method} {request.url.path} is not supported: this server serves the model that it was started with, "
        f"and requests cannot change what is on its disk. It has: {', '.join(serving_of(request).names)}. "
        "Start another server for another model."
    )


def _capabilities(model: ServedModel) -> list[str]:
    writes = model.info.task == "generate"
    known = {
        "completion": writes,
        "embedding": model.info.task == "embed",
        "tools": writes and model.template is not None and can_call(model),
        "thinking": model.template is not None and model.format.reasoning is not None,
        "insert": writes and model.infill is not None,
    }
    return [name for name, is_there in known.items() if is_there]


def _listed(name: str, serving: Serving) -> dict[str, object]:
    info = serving.engine.info
    tagged = name if ":" in re.split(r"[/\\]", name)[-1] else name + LATEST
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": timestamp(serving.created),
        "size": 0 if info is None else info.weight_bytes,
        "digest": hashlib.sha256(serving.names[0].encode()).hexdigest(),
        "details": _details(info),
    }


def _details(info: ModelInfo | None) -> dict[str, object]:
    family = "" if info is None else _family(info)
    return {
        "parent_model": "",
        "format": "" if info is None else "gguf" if info.model.lower().endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "" if info is None else _rounded(info.num_parameters),
        "quantization_level": "" if info is None else _LEVELS.get(info.dtype, ""),
    }


def _rounded(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count) if count else ""


def _family(info: ModelInfo) -> str:
    return re.sub("(ForCausalLM|ForSequenceClassification|Model)$", "", info.architecture).lower()


def _parameters(info: ModelInfo) -> list[str]:
    # One a line, in the form of a Modelfile.
    names = {"repetition_penalty": "repeat_penalty"}
    return [f"{names.get(name, name):<30} {value:g}" for name, value in info.default_sampling.items()]
