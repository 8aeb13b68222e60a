"""Ollama's streams: one JSON object a line. The format has no comments, so nothing is sent while nothing comes."""

from __future__ import annotations

from typing import ClassVar

from wllm_api.error_bodies import ollama_body
from wllm_api.http_errors import HttpError
from wllm_api.sse import EventStream, encode


def line(data: dict[str, object]) -> bytes:
    """One line; raises `ValueError` for a number that JSON does not have."""
    return encode(data).encode() + b"\n"


class LineStream(EventStream):
    """A response of JSON lines; a late error is the last one."""

    content_type: ClassVar[str] = "application/x-ndjson"
    ping: ClassVar[bytes | None] = None

    def failure(self, error: HttpError) -> bytes:
        """`{"error": "text"}`."""
        return line(ollama_body(error))
