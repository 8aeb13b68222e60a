"""An answer as a row of segments, for the APIs whose answers are lists of blocks or items.

A streamed and a whole answer both go through `Segments`, so they cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from wllm_api.answers.base import Gained
from wllm_api.answers.message import MessageText
from wllm_api.answers.token_texts import TokenTexts
from wllm_api.tools import Piece
from wllm_sched.plan import TokenLogprobs

# What Anthropic's clients send back for a call whose arguments cannot be read.
UNREADABLE = "INVALID_JSON"
_OBJECT: TypeAdapter[dict[str, object]] = TypeAdapter(dict[str, object])


@dataclass(slots=True)
class Segment:
    """Some text of one kind: shown, thought, or the arguments of a call. `rows` are the log-probabilities.

    `closed`: the answer went on after it, so that nothing cut it.
    """

    kind: Literal["content", "reasoning", "call"]
    name: str = ""
    call_id: str = ""
    text: str = ""
    rows: list[TokenLogprobs] = field(default_factory=list)
    closed: bool = False

    def arguments(self) -> dict[str, object]:
        """The arguments of a call as an object, as far as they came; under `UNREADABLE` when they are none."""
        if not self.text.strip():
            return {}
        try:
            return _OBJECT.validate_json(self.text, experimental_allow_partial=True)
        except ValueError:
            return {UNREADABLE: self.text}


class Step(NamedTuple):
    """What happened to the segment `number`: it began, gained `text` and `rows`, ended."""

    number: int
    segment: Segment
    text: str = ""
    rows: tuple[TokenLogprobs, ...] = ()
    begins: bool = False
    ends: bool = False


class Segments:
    """Puts what an answer gains into segments; an answer of nothing has one, without a text.

    A token counts for what its text makes certain first. Log-probabilities go with text that is shown: tokens of
    thoughts and calls have no place for them. `call_prefix` begins the ids of calls.
    """

    def __init__(self, message: MessageText, *, call_prefix: str = "call") -> None:
        self._message = message
        self._call_prefix = call_prefix
        self._tokens = TokenTexts()
        self._rows: list[TokenLogprobs] = []
        self._is_open = False
        self.all: list[Segment] = []

    def add(self, gained: Gained) -> Iterator[Step]:
        """The steps that a delta makes; they must be run through."""
        for part, begun in self._tokens.parts(gained):
            self._rows += [row for row in begun if row is not None]
            yield from self._take(self._message.pieces(part, num_tokens=len(begun)))
        if gained.finish_reason is not None:
            yield from self._take(self._message.pieces("", gained.finish_reason))
            if not self.all:
                yield from self._begin(Segment("content"))
            if self._rows and self.all[-1].kind == "content":
                yield self._more("")
            yield self._end()

    def _take(self, pieces: list[Piece]) -> Iterator[Step]:
        if pieces and pieces[0].kind != "content":
            self._rows.clear()
        for kind, text in pieces:
            if kind == "call":
                yield from self._begin(Segment("call", text, self._message.new_id(self._call_prefix)))
            elif kind == "arguments":
                yield self._more(text)
            else:
                if not self._is_open or self.all[-1].kind != kind:
                    yield from self._begin(Segment(kind))
                yield self._more(text)

    def _begin(self, segment: Segment) -> Iterator[Step]:
        if self._is_open:
            self.all[-1].closed = True
            yield self._end()
        self._is_open = True
        self.all.append(segment)
        yield self._step(begins=True)

    def _more(self, text: str) -> Step:
        segment = self.all[-1]
        rows = tuple(self._rows) if segment.kind == "content" else ()
        if rows:
            self._rows.clear()
        segment.text += text
        segment.rows += rows
        return self._step(text, rows)

    def _end(self) -> Step:
        self._is_open = False
        return self._step(ends=True)

    def _step(
        self, text: str = "", rows: tuple[TokenLogprobs, ...] = (), *, begins: bool = False, ends: bool = False
    ) -> Step:
        return Step(len(self.all) - 1, self.all[-1], text, rows, begins, ends)
