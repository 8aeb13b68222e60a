"""POST /rerank in Jina's and Cohere's shape, and POST /score in vLLM's."""

from __future__ import annotations

import time
import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from wllm_api.bodies import body_of
from wllm_api.disconnect import until_disconnect
from wllm_api.routes.common import model_of, serving_of
from wllm_api.schemas.rerank import RerankRequest, ScoreRequest
from wllm_api.scoring import Scorer
from wllm_sched.messages import Task

TASKS: tuple[Task, ...] = ("score", "embed")

router = APIRouter()
# Cohere's newer version leaves documents out of its answer, and counts elsewhere.
cohere = APIRouter()


@router.post("/rerank")
async def rerank(
    request: Request, body: Annotated[RerankRequest, Depends(body_of(RerankRequest))]
) -> dict[str, object]:
    """The documents by how well they answer the query, best first."""
    return await _reranked(request, body, with_documents=body.return_documents is not False)


@cohere.post("/rerank")
async def rerank_as_cohere(
    request: Request, body: Annotated[RerankRequest, Depends(body_of(RerankRequest))]
) -> dict[str, object]:
    """The same as Cohere's clients expect it."""
    answer = await _reranked(request, body, with_documents=body.return_documents is True)
    tokens = {"input_tokens": answer["usage"]["prompt_tokens"]}  # type: ignore[index]  # made below
    return {**answer, "meta": {"api_version": {"version": "2"}, "tokens": tokens}}


@router.post("/score")
async def score(request: Request, body: Annotated[ScoreRequest, Depends(body_of(ScoreRequest))]) -> dict[str, object]:
    """How well the texts of each pair fit together."""
    serving = serving_of(request)
    model = await model_of(request, body.model, tasks=TASKS)
    scorer = Scorer(serving, model, body, ("text_1", "text_2"))
    scores = await until_disconnect(request, scorer.scores(body.text_1, body.text_2))
    return {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model or serving.names[0],
        "method": scores.method,
        "data": [{"index": n, "object": "score", "score": value} for n, value in enumerate(scores.values)],
        "usage": _usage(scores.num_prompt_tokens),
    }


async def _reranked(request: Request, body: RerankRequest, *, with_documents: bool) -> dict[str, object]:
    serving = serving_of(request)
    model = await model_of(request, body.model, tasks=TASKS)
    scorer = Scorer(serving, model, body, ("query", "documents"))
    work = scorer.scores([body.query], body.documents, longest_text=body.max_tokens_per_doc)
    scores = await until_disconnect(request, work)
    # Ties keep the order of the documents.
    order = sorted(range(len(scores.values)), key=lambda number: -scores.values[number])
    results: list[dict[str, object]] = []
    for number in order[: body.top_n or None]:
        result: dict[str, object] = {"index": number, "relevance_score": scores.values[number]}
        if with_documents:
            result["document"] = {"text": body.documents[number]}
        results.append(result)
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": body.model or serving.names[0],
        "method": scores.method,
        "results": results,
        "usage": _usage(scores.num_prompt_tokens),
    }


def _usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": count, "total_tokens": count}
