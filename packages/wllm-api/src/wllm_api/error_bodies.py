"""The JSON that tells of a refusal, in the form that the clients of a path read: OpenAI's, Anthropic's or Ollama's.

Every refusal goes through here, those of the middleware too: a client understands its own API's errors only.
"""

from __future__ import annotations

import re

from starlette.responses import JSONResponse
from starlette.types import Scope

from wllm_api.http_errors import HttpError

# The path may not be repaired yet (see `middleware.paths`), so slashes may be doubled.
_ANTHROPIC_PATHS = re.compile(r"/+(v1/+)?messages(/.*)?")
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
OVERLOADED = 529


def refusal_response(refusal: HttpError, scope: Scope) -> JSONResponse:
    """The answer to a refused request: Ollama's form below /api, Anthropic's below /messages, else OpenAI's."""
    path = scope["path"]
    if is_anthropic(path):
        return JSONResponse(anthropic_body(refusal, scope), anthropic_status(refusal), refusal.headers)
    body = ollama_body(refusal) if is_ollama(path) else refusal.body()
    return JSONResponse(body, refusal.status, refusal.headers)


def ollama_body(refusal: HttpError) -> dict[str, object]:
    """Ollama's error object: a text and nothing else."""
    return {"error": refusal.message}


def is_ollama(path: str) -> bool:
    """Whether `path` belongs to Ollama's API."""
    return path.lstrip("/").startswith("api/")


def is_anthropic(path: str) -> bool:
    """Whether `path` belongs to Anthropic's API."""
    return _ANTHROPIC_PATHS.fullmatch(path) is not None


def anthropic_status(refusal: HttpError) -> int:
    """The HTTP status; Anthropic has one of its own for a server with too much to do."""
    return OVERLOADED if refusal.code == "server_is_overloaded" else refusal.status


def anthropic_body(refusal: HttpError, scope: Scope) -> dict[str, object]:
    """Anthropic's error object, with the request's id."""
    kind = _ANTHROPIC_TYPES.get(anthropic_status(refusal), "api_error")
    error: dict[str, object] = {"type": kind, "message": refusal.message}
    if refusal.param == "thread":
        # Anthropic's own client then goes on without one and sends the whole conversation.
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": error, "request_id": scope["state"]["request_id"]}
