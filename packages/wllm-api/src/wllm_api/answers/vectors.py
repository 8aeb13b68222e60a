"""Bodies that hold vectors, written vector by vector.

A million numbers in one call of `json.dumps` would hold up every other request, so each vector becomes JSON when it
comes, and the body is put together of these pieces.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

from wllm_api.pooling import Pooling, numbers


def as_numbers(vector: bytes) -> bytes:
    """JSON of a vector: a list of numbers."""
    return json.dumps(numbers(vector)).encode()


def as_base64(vector: bytes) -> bytes:
    """JSON of a vector: its bytes as a base64 string."""
    return b'"' + base64.b64encode(vector) + b'"'


async def entries_of(pooling: Pooling, write: Callable[[int, bytes], bytes]) -> list[bytes]:
    """What `write(number, vector)` makes of each vector, in their order; raises `HttpError`."""
    entries: dict[int, bytes] = {}
    async with aclosing(pooling.vectors()) as vectors:
        async for number, vector in vectors:
            entries[number] = write(number, vector)
    return [entries[number] for number in sorted(entries)]


def body_with(fields: Mapping[str, object], name: str, entries: Sequence[bytes]) -> bytes:
    """The JSON object of `fields`, and of `name` with the list of `entries`, which are JSON already."""
    return json.dumps(fields).encode()[:-1] + b', "' + name.encode() + b'": [' + b", ".join(entries) + b"]}"
