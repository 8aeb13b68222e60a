"""What a parser found: content, reasoning, calls; blanks around reasoning and calls are left out."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["content", "reasoning"]


class Piece(NamedTuple):
    """Some text of an answer: shown, thought, the name of the next call, or more of that call's arguments."""

    kind: Literal["content", "reasoning", "call", "arguments"]
    text: str


class Sink:
    """Collects pieces until they are taken; with `exact` no blank is left out."""

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._pieces: list[Piece] = []
        self._held: dict[Kind, str] = {"content": "", "reasoning": ""}
        # Blanks at the beginning of reasoning are left out, and of content when it follows something else.
        self._at_start: dict[Kind, bool] = {"content": False, "reasoning": True}
        self.only_blank = True

    def content(self, text: str) -> None:
        """Text that is shown."""
        self._text("content", text)

    def reasoning(self, text: str) -> None:
        """Text that is thought."""
        self._text("reasoning", text)

    def section(self) -> None:
        """Another kind of text begins, or a call: blanks on both sides are left out."""
        for kind in self._held:
            self._held[kind] = ""
            self._at_start[kind] = True
        self.only_blank = True

    def call(self, name: str) -> None:
        """A call of the function `name` begins."""
        self.section()
        self._pieces.append(Piece("call", name))

    def arguments(self, text: str) -> None:
        """More of the arguments of the call."""
        if text:
            self._pieces.append(Piece("arguments", text))

    def end(self) -> None:
        """The answer ends: blanks at the end of its content belong to it."""
        if self._held["content"]:
            self._pieces.append(Piece("content", self._held["content"]))

    def take(self) -> list[Piece]:
        """The pieces since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _text(self, kind: Kind, text: str) -> None:
        if not self._exact:
            text = self._held[kind] + text
            if self._at_start[kind]:
                text = text.lstrip()
            shown = text.rstrip()
            self._held[kind] = text[len(shown) :]
            text = shown
        if text:
            self._at_start[kind] = False
            self.only_blank = self.only_blank and kind == "reasoning"
            self._pieces.append(Piece(kind, text))
