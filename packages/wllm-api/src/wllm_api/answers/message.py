"""From the text of a choice to what its message has: content, reasoning, tool calls."""

from __future__ import annotations

import itertools
import secrets
import string
from collections.abc import Iterator
from typing import Any

from wllm_api.answers.base import Gained
from wllm_api.answers.token_texts import TokenTexts
from wllm_api.tools import AnswerParser, Piece
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
        self._last_call = -1
        self._tokens = TokenTexts()
        self._read: list[Piece] = []
        self._num_pending = 0
        self._thinking = False
        self.num_reasoning_tokens = 0
        self.finish_reason: str | None = None

    @property
    def called(self) -> bool:
        """Whether a call has begun."""
        return self._num_calls > 0

    def pieces(self, text: str, finish_reason: FinishReason | None = None, *, num_tokens: int = 0) -> list[Piece]:
        """What `text` makes certain and the request wants to see; the rest too once there is a `finish_reason`.

        `num_tokens` are those that came with `text`; they count for what they make certain first.
        """
        found = self._parser.push(text)
        if finish_reason is not None:
            found += self._parser.finish(cut=finish_reason == "length")
        self._num_pending += num_tokens
        if found or finish_reason is not None:
            self._thinking = found[0].kind == "reasoning" if found else self._thinking
            self.num_reasoning_tokens += self._num_pending if self._thinking else 0
            self._num_pending = 0
            self._thinking = found[-1].kind == "reasoning" if found else self._thinking
        wanted = []
        for piece in found:
            self._num_calls += piece.kind == "call"
            if piece.kind in ("call", "arguments"):
                shown = self._max_calls is None or self._num_calls <= self._max_calls
            else:
                shown = piece.kind == "content" or self._show_reasoning
            if shown:
                wanted.append(piece)
        if finish_reason is not None:
            ends_turn = finish_reason == "stop" and self.called and not self._named
            self.finish_reason = "tool_calls" if ends_turn else finish_reason
        return wanted

    def read(self, gained: Gained) -> None:
        """Take in what the choice gained."""
        for part, begun in self._tokens.parts(gained):
            self._read += self.pieces(part, num_tokens=len(begun))
        if gained.finish_reason is not None:
            self._read += self.pieces("", gained.finish_reason)

    def take(self) -> dict[str, Any]:
        """The message's fields as far as they were read since the last time: a delta, or the whole message."""
        delta: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        found, self._read = self._read, []
        for kind, piece in _joined(found):
            if kind == "content":
                delta["content"] = delta.get("content", "") + piece
            elif kind == "reasoning":
                delta["reasoning"] = delta["reasoning_content"] = delta.get("reasoning", "") + piece
            elif kind == "call":
                self._last_call += 1
                calls[self._last_call] = self._opening(self._last_call, piece)
            else:
                opening = {"index": self._last_call, "function": {"arguments": ""}}
                calls.setdefault(self._last_call, opening)["function"]["arguments"] += piece
        if calls:
            delta["tool_calls"] = list(calls.values())
        return delta

    def new_id(self, prefix: str = "call") -> str:
        """An id for a call, which the model's chat template takes when it comes back."""
        if self._short_ids:
            return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))
        return f"{prefix}_{secrets.token_hex(12)}"

    def _opening(self, number: int, name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": ""}
        return {"index": number, "id": self.new_id(), "type": "function", "function": function}


def _joined(pieces: list[Piece]) -> Iterator[Piece]:
    # Neighbours of one kind as one, so that a long answer is put together once, not at every token.
    for kind, alike in itertools.groupby(pieces, key=lambda piece: piece.kind):
        if kind == "call":
            yield from alike
        else:
            yield Piece(kind, "".join(piece.text for piece in alike))
