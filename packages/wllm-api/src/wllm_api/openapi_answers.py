"""What `/openapi.json` says of answers: their media types, and the form of every refusal.

FastAPI would tell of a 422 that this server never sends, and of JSON where there is none.
"""

from __future__ import annotations

from typing import Any

from wllm_api.error_bodies import is_anthropic, is_ollama
from wllm_api.schemas.base import Body

_TEXT = {"type": "string"}
_NULLABLE_TEXT = {"type": ["string", "null"]}

ERRORS: dict[str, dict[str, Any]] = {
    "Error": {
        "description": "OpenAI's error object: `code` and `param` are for programs, `message` is for people.",
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "description": "What went wrong.",
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {"message": _TEXT, "type": _TEXT, "param": _NULLABLE_TEXT, "code": _NULLABLE_TEXT},
            }
        },
    },
    "AnthropicError": {
        "description": "Anthropic's error object.",
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
            "request_id": _TEXT,
        },
    },
    "OllamaError": {
        "description": "Ollama's error object.",
        "type": "object",
        "required": ["error"],
        "properties": {"error": _TEXT},
    },
}
# Routes whose good answer is not JSON.
OTHER_ANSWERS: dict[str, dict[str, Any]] = {
    "/health": {},
    "/sleep": {},
    "/wake_up": {},
    "/metrics": {"text/plain": {"schema": _TEXT}, "application/openmetrics-text": {"schema": _TEXT}},
    "/": {"text/plain": {"schema": _TEXT}},
}


def describe_answers(document: dict[str, Any], bodies: dict[str, type[Body]]) -> None:
    """Correct the answers of every operation in an OpenAPI document; `bodies` by path tells which can be streamed."""
    document["components"]["schemas"] |= ERRORS
    for path, operations in document["paths"].items():
        error = "AnthropicError" if is_anthropic(path) else "OllamaError" if is_ollama(path) else "Error"
        for operation in operations.values():
            answers = operation["responses"]
            answers.pop("422", None)
            answers["default"] = {
                "description": "The refusal of a request, or a fault of the server.",
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}},
            }
            if path in OTHER_ANSWERS:
                answers["200"]["content"] = OTHER_ANSWERS[path]
            elif path in bodies and "stream" in bodies[path].model_fields:
                media_type = "application/x-ndjson" if is_ollama(path) else "text/event-stream"
                answers["200"]["content"][media_type] = {}
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
