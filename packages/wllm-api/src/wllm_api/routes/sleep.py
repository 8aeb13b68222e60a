"""POST /sleep, POST /wake_up and GET /is_sleeping, under vLLM's names: give the memory to another program for a while.

A model that sleeps has no process: nothing of it is left on the GPU or, but for its tokenizer, in the host's memory.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from wllm_api.disconnect import until_disconnect
from wllm_api.http_errors import Unsupported
from wllm_api.routes.common import model_of, serving_of

router = APIRouter()

ModelName = Annotated[str | None, Query(alias="model", description="One of the served names.")]
Level = Annotated[int, Query(description="2 keeps no weights in the host's memory, and is the only one there is.")]
Mode = Annotated[Literal["wait"], Query(description="Answers that run are written to their end.")]
Tags = Annotated[list[str] | None, Query(description="Not supported: a model wakes as a whole.")]


@router.post("/sleep")
async def sleep(request: Request, model: ModelName = None, level: Level = 2, mode: Mode = "wait") -> Response:
    """Unload a model, all of them without a name, once the requests that run have ended; answers when that is done."""
    if level != 2:
        raise Unsupported(
            f"'level' is {level}, and a model can sleep in one way only: level 2, which keeps no weights in the host's "
            "memory. Leave it out.",
            param="level",
        )
    serving = serving_of(request)
    tired = serving.models if model is None else [serving.hosted(model)]
    if serving.closing:
        raise serving.not_ready()
    await until_disconnect(request, serving.residency.sleep(tired))
    return Response(status_code=200)


@router.post("/wake_up")
async def wake_up(request: Request, model: ModelName = None, tags: Tags = None) -> Response:
    """Load a model, the first without a name; answers when it is loaded. A request for it does the same."""
    if tags is not None:
        raise Unsupported("'tags' name parts of a model, and a model wakes as a whole. Leave them out.", param="tags")
    serving = serving_of(request)
    serving.residency.wake(serving.hosted(model))
    await model_of(request, model, tasks=None)
    return Response(status_code=200)


@router.get("/is_sleeping")
async def is_sleeping(request: Request, model: ModelName = None) -> dict[str, bool]:
    """Whether a model, or without a name every model, is not loaded."""
    serving = serving_of(request)
    asked = serving.models if model is None else [serving.hosted(model)]
    return {"is_sleeping": all(not one.is_resident for one in asked)}
