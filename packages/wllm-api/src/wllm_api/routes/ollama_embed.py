"""POST /api/embed and /api/embeddings: Ollama's names for vectors of texts."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from wllm_api.answers.vectors import as_numbers, body_with, entries_of
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.inputs import checked_dimensions, pooled_inputs
from wllm_api.pooling import Pooling, numbers
from wllm_api.routes.common import serving_of
from wllm_api.routes.ollama_models import kept_model
from wllm_api.schemas.embeddings import EmbedRequest, OllamaEmbeddingsRequest, PooledFields

router = APIRouter()
# Ollama cuts what is too long unless it is told not to.
CUT, WHOLE = PooledFields(truncate_prompt_tokens=-1), PooledFields()


@router.post("/embed")
async def embed(request: Request, body: Annotated[EmbedRequest, Depends(body_of(EmbedRequest))]) -> Response:
    """A vector of length 1 for each text."""
    started = time.perf_counter_ns()
    model = await kept_model(request, body, tasks=("embed",))
    had_model = time.perf_counter_ns()
    pooling = Pooling(
        serving_of(request),
        model,
        await pooled_inputs(body.input, model, CUT if body.truncate else WHOLE, param="input"),
        dimensions=checked_dimensions(body.dimensions, model),
        normalize=True,
    )
    entries = await until_disconnect(request, entries_of(pooling, lambda number, vector: as_numbers(vector)))
    fields = {
        "model": body.model,
        "total_duration": time.perf_counter_ns() - started,
        "load_duration": had_model - started,
        "prompt_eval_count": pooling.num_prompt_tokens,
    }
    return Response(body_with(fields, "embeddings", entries), media_type="application/json")


@router.post("/embeddings")
async def embeddings(
    request: Request, body: Annotated[OllamaEmbeddingsRequest, Depends(body_of(OllamaEmbeddingsRequest))]
) -> dict[str, object]:
    """A vector of one text, of the length that the model gives it."""
    model = await kept_model(request, body, tasks=("embed",))
    if not body.prompt:
        return {"embedding": []}
    pooling = Pooling(serving_of(request), model, await pooled_inputs([body.prompt], model, CUT, param="prompt"))
    (entry,) = await until_disconnect(request, entries_of(pooling, lambda number, vector: vector))
    return {"embedding": numbers(entry)}
