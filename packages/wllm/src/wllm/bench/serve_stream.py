"""The events of one streamed answer: when they came, and what the last ones say.

Reads what every OpenAI server sends for `stream: true`: a JSON object a `data:` line. Parses only the first and last
events of a stream, since parsing all would cost more than receiving them; what lies between brings text.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from typing import Any

# The last events may bring no text: one with the finish reason, one with the usage, and some servers send both.
TAIL = 4


class Stream:
    """Feed it the pieces of a body; `close` it at the end."""

    def __init__(self) -> None:
        self.times = array("d")  # of the events that brought tokens, on `perf_counter`'s clock
        self.error: str | None = None
        self.done = False
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self._rest = b""
        self._tail: deque[tuple[bytes, int]] = deque(maxlen=TAIL)  # an event, and the number of times with it

    def feed(self, data: bytes, now: float) -> bool:
        """Take a piece that came at `now`; always wants more."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)
        return True

    def close(self) -> None:
        """Parse the last events: usage, and which of them brought no tokens."""
        for payload, count in reversed(self._tail):
            event = _parsed(payload)
            self._note_usage(event)
            if "error" in event:
                self.error = self.error or _reason(event)
            if count and not _brings_tokens(event) and count == len(self.times):
                self.times.pop()
        self._tail.clear()

    def _event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        if payload.startswith(b'{"error"'):
            self.error = self.error or _reason(_parsed(payload))
            return
        # Servers begin with an event that has a role and no text.
        if self.times or _brings_tokens(_parsed(payload)):
            self.times.append(now)
        self._tail.append((payload, len(self.times)))

    def _note_usage(self, event: dict[str, Any]) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict) and self.output_tokens is None:
            self.prompt_tokens = usage.get("prompt_tokens")
            self.output_tokens = usage.get("completion_tokens")


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        return {"error": f"not JSON: {payload[:80]!r}"}
    return event if isinstance(event, dict) else {"error": f"not a JSON object: {payload[:80]!r}"}


def _brings_tokens(event: dict[str, Any]) -> bool:
    for choice in event.get("choices") or ():
        part = choice.get("delta") or choice
        # A server that has no tokenizer sends ids only.
        if any(part.get(name) for name in ("text", "content", "reasoning_content", "reasoning", "tool_calls")):
            return True
        if choice.get("token_ids"):
            return True
    return False


def _reason(event: dict[str, Any]) -> str:
    error = event.get("error")
    return str(error.get("message", error) if isinstance(error, dict) else error)
