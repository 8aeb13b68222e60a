"""Requests that nobody should send: case number N is always the same one.

Owns where hostile values go: into a field of a good body, into a place inside of one, between its bytes, into the
method, the path and the headers. Routes and field names are those of the server's own schemas, so a new one takes part.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo
from robustness.fuzz_values import GOOD, hostile

from wllm_api.openapi import BODIES
from wllm_api.schemas.base import Body

# A place that is filled in when the body is text: hostile values are no JSON.
_HOLE = "@hole {number}@"
_HOLES = re.compile(r'"@hole (\d+)@"')
BODYLESS = ("/health", "/version", "/metrics", "/v1/models", "/v1/models/x", "/api/tags", "/api/ps", "/", "/docs")
UNKNOWN_METHOD = "BREW"
METHODS = ("GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", UNKNOWN_METHOD)


@dataclass(frozen=True, slots=True)
class Case:
    """One request; `number` makes it again."""

    number: int
    method: str
    path: str
    headers: dict[str, bytes]
    content: bytes

    def __str__(self) -> str:
        shown = self.content if len(self.content) < 600 else self.content[:300] + b" ... " + self.content[-100:]
        return f"case {self.number}: {self.method} {self.path} {self.headers} {shown!r}"


def case(number: int, paths: Sequence[str] = tuple(BODIES)) -> Case:
    """Case `number` for one of `paths`."""
    rng = random.Random(number)
    path = rng.choice(paths)
    schema = BODIES[path]
    content = _content(rng, schema)
    method, headers = "POST", {"content-type": b"application/json"}
    if rng.random() < 0.1:
        method = rng.choice(METHODS)
    if rng.random() < 0.1:
        path = rng.choice(
            (*BODYLESS, f"{path}/", f"/{path}", path.replace("/v1", ""), path.upper(), f"{path}%00", "/%ff")
        )
    if rng.random() < 0.2:
        headers |= rng.choice((
            {"content-type": b"text/plain"}, {"content-type": b"multipart/form-data"}, {"content-type": b"\xff"},
            {"content-encoding": b"gzip"}, {"content-encoding": b"\xe9"}, {"authorization": b"Bearer \xff\xfe"},
            {"x-request-id": b"\xff" * 20}, {"x-request-id": b"a" * 4000}, {"accept": b"image/png;q=x"},
            {"origin": b"http://[::1"}, {"host": b"[::1"}, {"host": b"a:b:c"}, {"expect": b"100-continue"},
            {"anthropic-version": b"never"}, {"traceparent": b"00-zz-1-"}, {"accept-encoding": b"\xe9, gzip"},
        ))  # fmt: skip
    return Case(number, method, path, headers, content)


def _content(rng: random.Random, schema: type[Body]) -> bytes:
    holes: list[str] = []

    def hole() -> str:
        holes.append(hostile(rng))
        return _HOLE.format(number=len(holes) - 1)

    body = _good(rng, schema)
    kind = rng.random()
    if kind < 0.4:
        names = [*schema.model_fields, *schema.unsupported, *sorted(schema.no_effect), "unheard_of"]
        for name in rng.choices(names, k=rng.choice((1, 1, 1, 2, 4))):
            body[name] = hole()
    elif kind < 0.7:
        for _ in range(rng.choice((1, 1, 2))):
            _replace(rng, body, hole())
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5)
    text = _HOLES.sub(lambda match: holes[int(match[1])], text)
    raw = text.encode("utf-8", "surrogatepass")
    return _broken(rng, raw) if kind >= 0.9 else raw


def _good(rng: random.Random, schema: type[Body]) -> dict[str, Any]:
    fields = schema.model_fields
    body = {name: _value(rng, name, field) for name, field in fields.items() if field.is_required()}
    needed = [name for name in ("messages", "prompt", "input") if name in fields and name not in body]
    for name in rng.sample(needed, min(len(needed), 1)):
        body[name] = _value(rng, name, fields[name])
    extra = [name for name in fields if name in GOOD and name not in ("messages", "prompt", "input")]
    for name in rng.sample(extra, min(len(extra), rng.choice((0, 1, 1, 2, 3, 5)))):
        body[name] = _value(rng, name, fields[name])
    copied: dict[str, Any] = json.loads(json.dumps(body))
    return copied


def _value(rng: random.Random, name: str, field: FieldInfo) -> Any:
    if name in GOOD:
        lists = "list" in str(field.annotation).lower()
        return rng.choice([value for value in GOOD[name] if lists or not isinstance(value, list)] or GOOD[name])
    return 1 if int in (field.annotation, *get_args(field.annotation)) else "x"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield value, key
        yield from _places(inner)


def _replace(rng: random.Random, body: dict[str, Any], value: str) -> None:
    parent, key = rng.choice(list(_places(body)) or [(body, "x")])
    if isinstance(parent, dict) and rng.random() < 0.2:
        parent[rng.choice((value, "", "\u0000", "type", "content", "a" * 10_000))] = parent.pop(key, None)
    else:
        parent[key] = value


def _broken(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw))
    return rng.choice((
        raw[:at], raw[at:], b"", raw + raw, raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :],
        raw[:at] + rng.randbytes(20) + raw[at:], b"\xef\xbb\xbf" + raw, b"\xff\xfe" + raw, rng.randbytes(200),
        raw.decode(errors="replace").encode("utf-16"), raw[:at] + b"\xed\xa0\x80" + raw[at:],
        raw[:at] + b"\x00" + raw[at:], b"a=1&b=2", b" " * 100_000 + raw, b"[" + raw + b"]",
    ))  # fmt: skip
