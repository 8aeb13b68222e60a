"""The last net: an exception that no handler took becomes a 500 with the request's id, and one log entry.

The log shows where the fault happened, never what the request held.
"""

from __future__ import annotations

import logging
import traceback

from starlette.types import ASGIApp, Receive, Scope, Send

from wllm_api.error_bodies import refusal_response
from wllm_api.http_errors import HttpError, ServerFault

logger = logging.getLogger(__name__)


class Faults:
    """Turns exceptions of everything inside into answers, as long as none has started; inside of `Identity`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        try:
            await self.app(scope, receive, send)
        except HttpError as refusal:
            assert "status" not in scope["state"], "a refusal comes before the answer"
            await refusal_response(refusal, scope)(scope, receive, send)
        except Exception as error:
            # Identity notes the status when an answer starts: a watch of our own would cost time with every token.
            if scope["type"] != "http" or "status" in scope["state"]:
                raise
            fault = reported(error, scope)
            await refusal_response(fault, scope)(scope, receive, send)


def reported(error: Exception, scope: Scope) -> ServerFault:
    """What the client is told of a fault of ours, after the log has been told more."""
    request_id = scope["state"]["request_id"]
    # The places only: the exception's own text may hold a piece of the request.
    places = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    logger.error("request %s failed: %s\n%s", request_id, type(error).__name__, places)
    return ServerFault(f"Internal error. Please report it with the server's log of request {request_id}.")
