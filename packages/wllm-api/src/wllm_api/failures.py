"""What a client is told when the engine ended its request without an answer."""

from __future__ import annotations

from wllm_api.http_errors import HttpError, InvalidRequest, ServerFault, Unavailable
from wllm_sched.messages import TokenEvent


def failure_of(event: TokenEvent) -> HttpError:
    """The refusal for a final event with the reason "error" or "abort"."""
    if event.finish_reason == "abort" or event.error_code == "engine_stopped":
        return Unavailable("The server is shutting down; the request was ended.", code="shutting_down")
    text = event.error or "the engine gave no reason"
    if event.error_code in ("engine_died", "internal_error"):
        return ServerFault(text, code=event.error_code)
    if event.error_code or event.error_parameter:
        # The engine refused the request: its own words, as for a field that was checked here.
        return InvalidRequest(text, param=event.error_parameter, code=event.error_code)
    return ServerFault(text)
