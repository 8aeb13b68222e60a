"""The text of an answer as a parser reads it: characters that may not have come yet.

Parsers are generators that yield when they need more text, so what they find depends on the characters alone, never on
the pieces that these come in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from wllm_api.tools.extent import JsonExtent

T = TypeVar("T")
# A read that may have to wait for text; its result is of type T.
Read = Generator[None, None, T]

BLANK = " \t\r\n"


class Source:
    """Text that comes in by `push` and ends with `end`; `cut` tells that a length limit ended it.

    `starved`: since the newest place was kept, a read found the end of everything where it wanted more.
    """

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._places = 0
        self._ended = False
        self.cut = False
        self.starved = False

    @property
    def exhausted(self) -> bool:
        """Whether all text has come and was read."""
        return self._ended and self._position == len(self._text)

    def push(self, text: str) -> None:
        """More text."""
        if not self._places:
            self._text, self._position = self._text[self._position :], 0
        self._text += text

    def end(self, *, cut: bool) -> None:
        """No more text will come."""
        self._ended, self.cut = True, cut

    def keep(self) -> int:
        """Keep what is read from here on; the result is the place for `rewind`. Places nest."""
        self._places += 1
        self.starved = False
        return self._position

    def release(self) -> None:
        """Give up all places: there is no way back."""
        self._places = 0

    def rewind(self, place: int) -> None:
        """Read again from `place`, the newest one, which is given up."""
        assert self._places, "only text that is kept can be read again"
        self._position = place
        self._places -= 1

    def discard(self) -> None:
        """Leave out the rest of the text."""
        self._position = len(self._text)

    def peek(self) -> Read[str]:
        """The next character, not taken; empty at the end."""
        while self._position == len(self._text) and not self._ended:
            yield
        char = self._text[self._position : self._position + 1]
        self.starved = self.starved or not char
        return char

    def skip(self, characters: str = BLANK) -> Read[None]:
        """Take all of `characters` that come next."""
        while (char := (yield from self.peek())) and char in characters:
            self._position += 1

    def word(self, ends: str) -> Read[str]:
        """The text up to one of the characters `ends`, which is not taken."""
        pieces: list[str] = []
        while (char := (yield from self.peek())) and char not in ends:
            pieces.append(char)
            self._position += 1
        return "".join(pieces)

    def literal(self, text: str) -> Read[bool]:
        """Take `text` if it comes next; at the end of everything a beginning of it is taken too, but does not count."""
        while True:
            there = self._text[self._position : self._position + len(text)]
            if there == text:
                self._position += len(text)
                return True
            if not text.startswith(there):
                return False
            if self._ended:
                self._position += len(there)
                self.starved = True
                return False
            yield

    def until(self, marks: Sequence[str], emit: Callable[[str], None]) -> Read[str | None]:
        """Give out text up to the first of `marks`, which is taken and returned; None at the end."""
        longest = max(map(len, marks), default=0)
        while True:
            text = self._text[self._position :]
            found = min(((at, mark) for mark in marks if (at := text.find(mark)) >= 0), default=None)
            # The beginning of a mark at the text's end may become one that starts before the one found.
            tail = range(max(len(text) - longest + 1, 0), len(text))
            held = next((at for at in tail if any(mark.startswith(text[at:]) for mark in marks)), len(text))
            if found is not None and (self._ended or found[0] <= held):
                emit(text[: found[0]])
                self._position += found[0] + len(found[1])
                return found[1]
            shown = len(text) if self._ended else held
            emit(text[:shown])
            self._position += shown
            if self._ended:
                self.starved = True
                return None
            yield

    def text_until(self, *marks: str) -> Read[tuple[str, str | None]]:
        """The text up to the first of `marks`, and that mark, which is taken; None at the end."""
        pieces: list[str] = []
        mark = yield from self.until(marks, pieces.append)
        return "".join(pieces), mark

    def json_value(self, emit: Callable[[str], None], *, opened: str = "") -> Read[bool]:
        """Give out a JSON value as it comes, `opened` being read already; False when it has no end."""
        extent = JsonExtent()
        extent.feed(opened, 0)
        emit(opened)
        while True:
            count = extent.feed(self._text, self._position)
            emit(self._text[self._position : self._position + count])
            self._position += count
            if extent.complete or extent.broken:
                return extent.complete
            if self._ended:
                self.starved = True
                return extent.scalar
            yield

    def json_text(self) -> Read[object]:
        """A whole JSON value, parsed; None for anything else (no caller has a use for null)."""
        pieces: list[str] = []
        yield from self.json_value(pieces.append)
        return parsed("".join(pieces))


def parsed(text: str) -> object:
    """What the JSON `text` stands for; None when it is no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
