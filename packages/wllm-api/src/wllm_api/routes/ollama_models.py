"""Ollama's /api/tags, /api/show, /api/ps, /api/version, and its routes that this server refuses.

Nothing here touches the disk or the network: a server serves the models it was started with, whatever a request says.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from wllm_api.answers.ollama import timestamp
from wllm_api.bodies import body_of
from wllm_api.hosting import HostedModel, LoadedModel
from wllm_api.http_errors import InvalidRequest, NotFound
from wllm_api.model import ServedModel
from wllm_api.routes.common import model_of, serving_of
from wllm_api.schemas.ollama import OllamaBody, ShowRequest
from wllm_api.serving import Serving
from wllm_api.tool_offer import can_call
from wllm_api.version import package_version
from wllm_sched.messages import ModelInfo, Task

router = APIRouter()
root = APIRouter(include_in_schema=False)

# Clients refuse servers that seem too old, so this is the release of Ollama whose API is spoken, not our own.
OLLAMA_VERSION = "0.12.11"
LATEST = ":latest"
NEVER = "9999-12-31T23:59:59Z"
LONGEST_STAY_S = 1e9  # dates end some day
_LEVELS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def served_name(serving: Serving, wanted: str) -> str:
    """The served name that a client means, with or without ":latest"; raises `NotFound`."""
    untagged = wanted.removesuffix(LATEST)
    for name in (wanted, untagged, untagged + LATEST):
        if name in serving.names:
            return name
    raise NotFound(
        f"model '{wanted}' not found. This server has: {', '.join(serving.names)}.",
        param="model",
        code="model_not_found",
    )


async def kept_model(request: Request, body: OllamaBody, *, tasks: Sequence[Task]) -> LoadedModel:
    """The model that a request names, kept loaded for as long as it says, where the server unloads models at all."""
    serving = serving_of(request)
    name = served_name(serving, body.model)
    model = await model_of(request, name, tasks=tasks)
    hosted = serving.hosted(name)
    if body.keep_alive is not None and serving.may_unload(hosted):
        hosted.stay_s = body.keep_alive
    return model


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
    """The names that the models go by, loaded or not."""
    serving = serving_of(request)
    return {"models": [_listed(name, serving) for name in serving.names]}


@router.get("/ps")
async def running(request: Request) -> dict[str, object]:
    """The models in memory, and how long each stays there if nobody asks for it."""
    serving = serving_of(request)
    listed = []
    for hosted in serving.models:
        info = hosted.info
        if info is None or not hosted.is_ready or not serving.ready:
            continue
        loaded = {
            "expires_at": _expiry(hosted),
            "size_vram": info.weight_bytes if info.device.startswith("cuda") else 0,
            "context_length": info.max_model_len,
        }
        listed += [_listed(name, serving) | loaded for name in hosted.names]
    for one in listed:
        del one["modified_at"]
    return {"models": listed}


@router.post("/show")
async def show(request: Request, body: Annotated[ShowRequest, Depends(body_of(ShowRequest))]) -> dict[str, object]:
    """What is known of the model; one that was not loaded yet shows nothing of what its files hold."""
    serving = serving_of(request)
    hosted = serving.hosted(served_name(serving, body.model or body.name))
    if not serving.residency.has_started:
        raise serving.not_ready()
    # Programs ask for every model that they find: that must not load one after the other.
    model = hosted.loaded
    if model is None:
        return {
            "modelfile": "",
            "parameters": "",
            "template": "",
            "details": _details(None),
            "model_info": {},
            "capabilities": [],
            "modified_at": timestamp(serving.created),
        }
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
        f"{request.method} {request.url.path} is not supported: this server has the models that it was started with, "
        f"and requests cannot change what is on its disk. It has: {', '.join(serving_of(request).names)}. "
        "Start the server with another model."
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


def _expiry(model: HostedModel) -> str:
    left_s = model.idle_left_s()
    if left_s > LONGEST_STAY_S:
        return NEVER
    return timestamp(datetime.now(UTC).timestamp() + left_s)


def _listed(name: str, serving: Serving) -> dict[str, object]:
    hosted = serving.hosted(name)
    info = hosted.info
    has_tag = ":" in re.split(r"[/\\]", name)[-1] or name + LATEST in serving.names
    tagged = name if has_tag else name + LATEST
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": timestamp(serving.created),
        "size": 0 if info is None else info.weight_bytes,
        "digest": hashlib.sha256(hosted.name.encode()).hexdigest(),
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
