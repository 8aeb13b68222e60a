"""The JSON that tells of a refusal, in the form that the clients of a path read."""

from __future__ import annotations

from starlette.responses import JSONResponse

from wllm_api.http_errors import HttpError


def refusal_response(refusal: HttpError, path: str) -> JSONResponse:
    """The answer to a request of `path` that is refused: Ollama's form below /api, else OpenAI's."""
    # The path may not be repaired yet (see `middleware.paths`).
    is_ollama = f"/{path.lstrip('/')}".startswith("/api/")
    body = ollama_body(refusal) if is_ollama else refusal.body()
    return JSONResponse(body, refusal.status, refusal.headers)


def ollama_body(refusal: HttpError) -> dict[str, object]:
    """Ollama's error object: a text and nothing else."""
    return {"error": refusal.message}
