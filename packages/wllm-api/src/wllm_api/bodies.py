"""From the bytes of a request to a checked object of a schema.

Owns the byte limit, the character encoding, and the three fates of a field: done, refused, ignored. Knows no route and
no model. Routes declare `Depends(body_of(Schema))`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from wllm_api.disconnect import ClientGone
from wllm_api.http_errors import BodyTooLarge, InvalidRequest
from wllm_api.record import current_record
from wllm_api.schemas.base import Body
from wllm_api.schemas.tagged import is_tag
from wllm_api.threads import in_thread

logger = logging.getLogger(__name__)

AnyBody = TypeVar("AnyBody", bound=Body)

MAX_IGNORED_SHOWN = 20
MAX_IGNORED_LOGGED = 1000
MAX_SHOWN = 60
MAX_MEMBERS = 200_000


def body_of(schema: type[AnyBody]) -> Callable[[Request], Awaitable[AnyBody]]:
    """A dependency that reads the request's body as `schema`; raises `InvalidRequest` or `BodyTooLarge`."""

    def checked(raw: bytes, request: Request) -> AnyBody:
        data = parse_object(raw)
        ignored = schema.ignored(data)
        if ignored:
            _tell_once(request, ignored)
        schema.refuse_unsupported(data)
        try:
            return schema.model_validate(data)
        except ValidationError as error:
            raise _first_problem(error) from None

    async def read(request: Request) -> AnyBody:
        raw = await _read_bytes(request)
        current_record().num_body_bytes = len(raw)
        return await in_thread(False, lambda: checked(raw, request))

    return read


def parse_object(raw: bytes) -> dict[str, object]:
    """The JSON object in `raw`: UTF-8, with or without a byte order mark; raises `InvalidRequest`."""
    if not raw:
        raise InvalidRequest("The request has no body. Send a JSON object.")
    _refuse_many_members(raw)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The request body is not valid UTF-8 (byte 0x{raw[error.start]:02x} at position {error.start}). "
            "Encode the JSON as UTF-8; Windows PowerShell does with -ContentType 'application/json; charset=utf-8'."
        ) from None
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_each_once)
        if "\\ud" in text or "\\uD" in text:
            _check_pairs(data)
    except UnicodeEncodeError:
        raise InvalidRequest(
            "The request body holds half of a surrogate pair (\\ud800 to \\udfff). Send whole characters."
        ) from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply. Send a flatter JSON object.") from None
    except ValueError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"The request body must be a JSON object, not {_json_name(data)}.")
    return data


async def _read_bytes(request: Request) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise InvalidRequest(f"Content-Encoding '{encoding}' is not supported. Send the body uncompressed.")
    limit: int = request.app.state.serving.limits.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise _too_large(len(body), limit)
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


def _too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body has {size:,} bytes or more; the limit is {limit:,}. Send less at once.")


def _refuse_many_members(raw: bytes) -> None:
    # Whoever decodes JSON in C lets nobody in: 32 MiB of text take some milliseconds, of members of objects a second.
    # In a text the mark is escaped.
    count = raw.count(b'":') - raw.count(b'\\":')
    if count > MAX_MEMBERS:
        raise InvalidRequest(
            f"The objects of the request body have {count:,} members; the limit is {MAX_MEMBERS:,}. Send less at once."
        )


def _each_once(members: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in members:
        if name in found:
            raise InvalidRequest(f"The request body has {name[:MAX_SHOWN]!r} twice in one object. Keep one of them.")
        found[name] = value
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _check_pairs(value: object) -> None:
    # Raises `UnicodeEncodeError`. Piece by piece, which lets others in.
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        piece.encode()


def _json_name(data: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(data), "a number")


def note_ignored(request: Request, names: Sequence[str]) -> None:
    """Name more of what is ignored in the answer's header."""
    told = request.scope["state"].get("ignored_fields")
    request.scope["state"]["ignored_fields"] = ", ".join([*([told] if told else []), *names[:MAX_IGNORED_SHOWN]])


def _tell_once(request: Request, ignored: list[str]) -> None:
    # Names come from outside: they go into a header and a log, both short and plain.
    names = [ascii(name[:64])[1:-1] for name in ignored[:MAX_IGNORED_SHOWN]]
    more = len(ignored) - len(names)
    request.scope["state"]["ignored_fields"] = ", ".join([*names, *([f"and {more} more"] if more else [])])
    seen: set[str] = request.app.state.serving.ignored_seen
    for name in names:
        if name not in seen and len(seen) < MAX_IGNORED_LOGGED:
            seen.add(name)
            logger.warning("request field '%s' is unknown and ignored (said once)", name)


def _first_problem(error: ValidationError) -> InvalidRequest:
    problems = error.errors(include_url=False, include_context=True)
    first = problems[0]
    path = _path(first["loc"])
    if first["type"] == "missing":
        return InvalidRequest(f"'{path}' is required.", param=path)
    message = str(first["msg"]).removeprefix("Value error, ").removesuffix(".")
    if first["type"] in ("value_error", "model_attributes_type", "model_type"):
        value = ""
    else:
        value = f" (got {_shown(first['input'])})"
    # A default that waits for a wrong field is not wrong itself, and each branch of a union has a line of its own.
    wrong = {_path(problem["loc"]) for problem in problems if problem["type"] != "default_factory_not_called"}
    others = len(wrong - {path})
    more = f" {others} more field{'s are' if others > 1 else ' is'} wrong too." if others else ""
    where = f"'{path}': " if path else ""
    # A check of several fields together begins with the name of the one to change.
    named = re.match(r"'([\w.]+)'", message) if not path else None
    return InvalidRequest(f"{where}{message}{value}.{more}", param=path or (named and named[1]))


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        if isinstance(part, str) and is_tag(part):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _shown(value: object) -> str:
    text = ""
    value = value[:MAX_SHOWN] if isinstance(value, str) else value
    # Piece by piece: what is shown is short, what was sent may not be.
    for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
        text += piece
        if len(text) > MAX_SHOWN:
            return text[: MAX_SHOWN - 3] + "..."
    return text
