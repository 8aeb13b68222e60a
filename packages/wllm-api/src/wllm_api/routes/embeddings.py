"""POST /v1/embeddings."""

from __future__ import annotations

import time
import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from wllm_api.answers.vectors import as_base64, as_numbers, body_with, entries_of
from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.inputs import checked_dimensions, pooled_inputs
from wllm_api.pooling import Pooling
from wllm_api.routes.common import model_of, serving_of
from wllm_api.schemas.embeddings import EmbeddingRequest

router = APIRouter()


@router.post("/embeddings")
async def create_embeddings(
    request: Request, body: Annotated[EmbeddingRequest, Depends(body_of(EmbeddingRequest))]
) -> Response:
    """A vector for each input."""
    serving = serving_of(request)
    model = await model_of(request, body.model, tasks=("embed",))
    pooling = Pooling(
        serving,
        model,
        await pooled_inputs(body.inputs, model, body, param="input"),
        dimensions=checked_dimensions(body.dimensions, model),
        normalize=body.normalize,
    )
    encoded = as_base64 if body.encoding_format == "base64" else as_numbers

    def entry(number: int, vector: bytes) -> bytes:
        return b'{"object": "embedding", "index": %d, "embedding": %b}' % (number, encoded(vector))

    entries = await until_disconnect(request, entries_of(pooling, entry))
    count = pooling.num_prompt_tokens
    fields = {
        "object": "list",
        "id": f"embd-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": body.model or serving.names[0],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
    return Response(body_with(fields, "data", entries), media_type="application/json")
