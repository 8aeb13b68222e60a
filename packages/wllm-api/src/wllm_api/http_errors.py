"""What a client is told when its request cannot be served: one exception for each kind of refusal.

HttpError (ApiError)             status, OpenAI error type, `param`, `code`, extra headers
├── InvalidRequest               400  a field, a body, a header that cannot be taken
│   ├── ContextLengthExceeded    400  prompt and answer do not fit into the context
│   └── Unsupported              400  a known field that this server does not implement
├── Unauthorized                 401  API key missing or wrong
├── Forbidden                    403  a Host or an Origin that may not use this server
├── NotFound                     404  unknown route or model
├── MethodNotAllowed             405
├── Conflict                     409  what one client asked for, another has called off
├── BodyTooLarge                 413
├── HeadTooLarge                 431  an address and headers without end
├── RateLimited                  429  a key with too many requests a minute
├── ServerFault                  500  our bug, or an engine that died under the request
└── Unavailable                  503  loading, restarting, overloaded, shutting down: try again
ServeError (ApiError)            the server cannot start
├── PortUnavailable              in use, reserved by Windows, or not ours to take
├── UnusableKey                  an API key that no client could send, a file without one
├── UnusableTracing              OTEL_* variables that ask for what there is not
├── RepeatedModelName            two models of one name
├── UnknownParser                no parser of tool calls or reasoning has this name
└── ExposedWithoutKey            other machines could reach a server that has no key
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wllm_api.errors import ApiError

RETRY_AFTER_S = 2


class HttpError(ApiError):
    """A refusal with its HTTP status and OpenAI's error fields; `headers` go into the answer."""

    status: ClassVar[int]
    type: ClassVar[str] = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequest(HttpError):
    """The request cannot be taken as it is; `param` names the field."""

    status = 400


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer together are longer than the model's context."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class Unsupported(InvalidRequest):
    """A field that clients know and this server does not implement: refused, never ignored."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message, param=param, code="unsupported_parameter")


class Unauthorized(HttpError):
    """The API key is missing or wrong."""

    status = 401
    type = "authentication_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class Forbidden(HttpError):
    """The page or the name that the request came through may not use this server."""

    status = 403
    type = "permission_error"


class NotFound(HttpError):
    """No such route or model."""

    status = 404


class MethodNotAllowed(HttpError):
    """The route exists, the method does not."""

    status = 405


class RequestTimeout(HttpError):
    """The rest of the request does not come."""

    status = 408


class Conflict(HttpError):
    """Another client has asked for the opposite meanwhile."""

    status = 409


class BodyTooLarge(HttpError):
    """The request body is over the limit."""

    status = 413

    def __init__(self, message: str) -> None:
        super().__init__(message, code="request_too_large")


class HeadTooLarge(HttpError):
    """The request's address and headers are over the limit."""

    status = 431


class RateLimited(HttpError):
    """The key has sent too many requests; the client should wait for `retry_after_s` seconds."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message, code="rate_limit_exceeded", headers={"Retry-After": str(retry_after_s)})


class ServerFault(HttpError):
    """Our fault; clients are told not to repeat the request, which may have caused it."""

    status = 500
    type = "server_error"

    def __init__(self, message: str, *, code: str = "internal_error") -> None:
        super().__init__(message, code=code, headers={"x-should-retry": "false"})


class Unavailable(HttpError):
    """Not now: the client should try again after `RETRY_AFTER_S` seconds."""

    status = 503
    type = "service_unavailable_error"

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message, code=code, headers={"Retry-After": str(RETRY_AFTER_S)})


class ServeError(ApiError):
    """The server cannot start."""


class PortUnavailable(ServeError):
    """The address cannot be listened on."""


class UnusableKey(ServeError):
    """An API key that cannot be used, or a file without one."""


class UnusableTracing(ServeError):
    """Traces are asked for that cannot be sent."""


class RepeatedModelName(ServeError):
    """Two models of one server go by the same name."""


class UnknownParser(ServeError):
    """A parser that does not exist was asked for."""


class ExposedWithoutKey(ServeError):
    """A server that other machines can reach needs an API key."""
