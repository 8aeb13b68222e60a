"""Where a JSON value in a stream of text ends."""

from __future__ import annotations

_SCALAR_ENDS = frozenset(",}] \t\r\n<;")


class JsonExtent:
    """Follows one value, piece by piece.

    Judges brackets and strings only: what a model wrote goes to the client as it is. A "<" outside of strings is no
    JSON and most likely begins the mark that ends the call, so the value is `broken` there.
    """

    def __init__(self) -> None:
        self.complete = False
        self.broken = False
        self.scalar = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, start: int) -> int:
        """How many characters of `text` from `start` on belong to the value."""
        for position in range(start, len(text)):
            if self._ends_before(text[position]):
                return position - start
            if self._ends_with(text[position]):
                self.complete = True
                return position - start + 1
        return len(text) - start

    def _ends_before(self, char: str) -> bool:
        if self._in_string:
            return False
        if self.scalar:
            self.complete = char in _SCALAR_ENDS
            return self.complete
        self.broken = char == "<" or (self._depth == 0 and char in _SCALAR_ENDS)
        return self.broken

    def _ends_with(self, char: str) -> bool:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                return self._depth == 0
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth == 0
        elif self._depth == 0:
            self.scalar = True
        return False
