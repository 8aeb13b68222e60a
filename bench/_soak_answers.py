"""What a server answered in the soak test, whole or streamed, in one form, and what must hold of any answer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Choice:
    """One answer to a prompt."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[float | None] = field(default_factory=list)
    top: list[dict[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Reply:
    """The answer to a request. `error` is that of the body, or of an event in the middle of a stream."""

    status: int
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    done: bool = True

    @classmethod
    def read(cls, status: int, body: bytes, *, streamed: bool) -> Reply:
        """From the body of an answer."""
        reply = cls(status)
        if status != 200 or not streamed:
            reply._take(json.loads(body))
            return reply
        reply.done = False
        for line in body.split(b"\n"):
            if line == b"data: [DONE]":
                reply.done = True
            elif line.startswith(b"data: "):
                reply._take(json.loads(line[6:]))
        return reply

    def _take(self, piece: dict[str, Any]) -> None:
        if "error" in piece:
            self.error = str(piece["error"].get("message"))
        self.usage = piece.get("usage") or self.usage
        for part in piece.get("choices", ()):
            choice = self.choices.setdefault(part["index"], Choice())
            message = part.get("message") or part.get("delta") or part
            choice.text += message.get("text") or message.get("content") or ""
            choice.token_ids += part.get("token_ids") or ()
            choice.finish_reason = part.get("finish_reason") or choice.finish_reason
            logprobs = part.get("logprobs") or {}
            choice.logprobs += logprobs.get("token_logprobs") or ()
            choice.top += logprobs.get("top_logprobs") or ()


def faults(reply: Reply, body: dict[str, Any]) -> Iterator[str]:
    """What is wrong with an answer to `body` that had to be a good one."""
    if reply.status != 200 or reply.error is not None:
        yield f"status {reply.status}: {reply.error}"
        return
    if not reply.done:
        yield "the stream ended without [DONE]"
    count, limit = body.get("n", 1), body["max_tokens"]
    if sorted(reply.choices) != list(range(count)):
        yield f"choices {sorted(reply.choices)} instead of {count}"
    for index, choice in reply.choices.items():
        tokens = len(choice.token_ids)
        if choice.finish_reason not in ("stop", "length"):
            yield f"choice {index} ended with {choice.finish_reason!r}"
        if tokens > limit or (choice.finish_reason == "length" and tokens != limit):
            yield f"choice {index} has {tokens} tokens of {limit} and ended with {choice.finish_reason!r}"
        if tokens < body.get("min_tokens", 0):
            yield f"choice {index} has {tokens} tokens, fewer than min_tokens {body['min_tokens']}"
        if "logprobs" in body:
            yield from _logprob_faults(choice)
        allowed = body.get("allowed_token_ids")
        if allowed is not None and not set(choice.token_ids) <= set(allowed):
            yield f"choice {index} holds {sorted(set(choice.token_ids) - set(allowed))}, which are not allowed"
        if choice.finish_reason == "stop" and not _has_form(choice.text, body.get("structured_outputs", {})):
            yield f"choice {index} is {choice.text!r}, which is not of the form {body['structured_outputs']}"
        for stop in body.get("stop", ()):
            if stop in choice.text:
                yield f"choice {index} holds the stop string {stop!r}"
    counted = sum(len(choice.token_ids) for choice in reply.choices.values())
    if reply.usage.get("completion_tokens") != counted:
        yield f"usage counts {reply.usage.get('completion_tokens')} tokens, the answer has {counted}"


def _has_form(text: str, form: dict[str, Any]) -> bool:
    if "choice" in form:
        return text in form["choice"]
    if "regex" in form:
        return re.fullmatch(form["regex"], text) is not None
    if "json" not in form:
        return True
    try:
        found = json.loads(text)
    except ValueError:
        return False
    name, age = found.get("name"), found.get("age")
    return found.keys() == {"name", "age"} and isinstance(name, str) and len(name) <= 8 and isinstance(age, int)


def _logprob_faults(choice: Choice) -> Iterator[str]:
    values = [value for value in choice.logprobs if value is not None]
    # A token that ends the answer and is not shown has none.
    hidden = len(choice.token_ids) - len(choice.logprobs)
    if hidden not in ((0, 1) if choice.finish_reason == "stop" else (0,)):
        yield f"{len(choice.logprobs)} log-probabilities for {len(choice.token_ids)} tokens"
    if not all(math.isfinite(value) and value <= 1e-4 for value in values):
        yield f"log-probabilities that are none: {values}"
