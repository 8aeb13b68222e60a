"""Puts the request bodies, and what there is to say of answers, into `/openapi.json`.

The routes read their bodies themselves (see `bodies`), so FastAPI does not know them.
"""

from __future__ import annotations

import inspect
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from wllm_api.openapi_answers import describe_answers
from wllm_api.schemas.base import Body
from wllm_api.schemas.chat import ChatRequest
from wllm_api.schemas.completions import CompletionRequest
from wllm_api.schemas.embeddings import EmbeddingRequest, EmbedRequest, OllamaEmbeddingsRequest
from wllm_api.schemas.messages import CountTokensRequest, MessagesRequest
from wllm_api.schemas.ollama import OllamaChatRequest, OllamaGenerateRequest, ShowRequest
from wllm_api.schemas.rerank import RerankRequest, ScoreRequest
from wllm_api.schemas.responses import InputTokensRequest, ResponsesRequest
from wllm_api.schemas.tokens import DetokenizeRequest, TokenizeRequest

BODIES: dict[str, type[Body]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/input_tokens": InputTokensRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/rerank": RerankRequest,
    "/v2/rerank": RerankRequest,
    "/v1/score": ScoreRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/api/chat": OllamaChatRequest,
    "/api/generate": OllamaGenerateRequest,
    "/api/show": ShowRequest,
    "/api/embed": EmbedRequest,
    "/api/embeddings": OllamaEmbeddingsRequest,
}


def describe_bodies(app: FastAPI) -> None:
    """Make `app.openapi()` show the body of every POST route."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _schema(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own documented way


def _schema(app: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    refs, definitions = models_json_schema(
        [(model, "validation") for model in BODIES.values()], ref_template="#/components/schemas/{model}"
    )
    known: dict[str, Any] = schema.setdefault("components", {}).setdefault("schemas", {})
    known.update(definitions.get("$defs", {}))
    for path, model in BODIES.items():
        reference = refs[(model, "validation")]
        known[reference["$ref"].rpartition("/")[2]]["description"] = _told(model)
        content = {"application/json": {"schema": reference}}
        schema["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
    describe_answers(schema, BODIES)
    return schema


def _told(model: type[Body]) -> str:
    # The fields without a place among the properties: what becomes of them.
    paragraphs = [inspect.getdoc(model) or ""]
    if model.no_effect:
        paragraphs.append(f"Taken, without effect: {', '.join(sorted(model.no_effect))}.")
    if model.unsupported:
        paragraphs.append(f"Refused unless it asks for nothing: {', '.join(sorted(model.unsupported))}.")
    paragraphs.append("Other fields are ignored and named in the header X-Wllm-Ignored.")
    return "\n\n".join(paragraphs)
