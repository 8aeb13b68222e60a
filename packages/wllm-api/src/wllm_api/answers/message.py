"""From the text of a choice to the fields of its message: content, reasoning, tool calls."""

from __future__ import annotations

import secrets
import string
from typing import Any

from wllm_api.tools import AnswerParser
from wllm_sched.messages import FinishReason

_ID_LETTERS = string.ascii_letters + string.digits


class MessageText:
    """One choice's text on its way to the client; `max_calls` drops calls beyond a number.

    Both names of the reasoning are sent, since clients differ in which one they read. `short_ids` makes the ids that
    Mistral's templates take. `named`: the request named the function, and a call ends with "stop" as at OpenAI.
    """

    def __init__(
        self, parser: AnswerParser, *, show_reasoning: bool, max_calls: int | None, short_ids: bool, named: bool
    ) -> None:
        self._parser = parser
        self._show_reasoning = show_reasoning
        self._max_calls = max_calls
        self._short_ids = short_ids
        self._named = named
        self._num_calls = 0
        self.finish_reason: str | None = None

    def add(self, text: str, finish_reason: FinishReason | None) -> dict[str, Any]:
        """The fields of the delta that `text` makes; of the whole message when it is the whole text."""
        pieces = self._parser.push(text)
        if finish_reason is not None:
            pieces += self._parser.finish(cut=finish_reason == "length")
        delta: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        for kind, piece in pieces:
            if kind == "content":
                delta["content"] = delta.get("content", "") + piece
            elif kind == "reasoning":
                if self._show_reasoning:
                    delta["reasoning"] = delta["reasoning_content"] = delta.get("reasoning", "") + piece
            else:
                if kind == "call":
                    self._num_calls += 1
                number = self._num_calls - 1
                if self._max_calls is not None and number >= self._max_calls:
                    continue
                if kind == "call":
                    calls[number] = self._opening(number, piece)
                else:
                    call = calls.setdefault(number, {"index": number, "function": {"arguments": ""}})
                    call["function"]["arguments"] += piece
        if calls:
            delta["tool_calls"] = list(calls.values())
        if finish_reason is not None:
            called = finish_reason == "stop" and self._num_calls and not self._named
            self.finish_reason = "tool_calls" if called else finish_reason
        return delta

    def _opening(self, number: int, name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": ""}
        return {"index": number, "id": self._new_id(), "type": "function", "function": function}

    def _new_id(self) -> str:
        if self._short_ids:
            return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"
