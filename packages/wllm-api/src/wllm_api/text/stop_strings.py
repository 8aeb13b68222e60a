"""Stop strings in a stream of text, however the text is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence


def _borders(pattern: str) -> list[int]:
    # Knuth, Morris and Pratt (1977): borders[i] is the length of the longest proper prefix of pattern[:i] that also
    # ends it, the place to go on from when the character after pattern[:i] does not match.
    borders = [0] * (len(pattern) + 1)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = borders[length]
        length += pattern[i] == pattern[length]
        borders[i + 1] = length
    return borders


class StopStrings:
    """Finds the stop string that is complete first; among those complete at one character, the longest.

    Only text that may still become a stop string is held back, and released as soon as it cannot. The result depends on
    the characters alone, not on the pieces that they come in.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._include = include

    def push(self, piece: str) -> tuple[str, str | None]:
        """The text that can be shown, and the stop string that ended it (the rest of `piece` is dropped) or None."""
        if not self._stops:
            return piece, None
        for position, char in enumerate(piece):
            stop = self._advance(char)
            if stop is not None:
                text = self._held + piece[: position + 1]
                self._held = ""
                return (text if self._include else text[: -len(stop)]), stop
        text = self._held + piece
        shown = len(text) - max(self._matched)
        self._held = text[shown:]
        return text[:shown], None

    def flush(self) -> str:
        """The text held back, at the end of the answer or before text that no stop string may touch."""
        text, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return text

    def _advance(self, char: str) -> str | None:
        complete = None
        for n, stop in enumerate(self._stops):
            length = self._matched[n]
            while length and char != stop[length]:
                length = self._borders[n][length]
            length += char == stop[length]
            self._matched[n] = length
            if complete is None and length == len(stop):
                complete = stop
        return complete
