"""Names of control tokens in what people type: they stay text, however they are spelled.

A chat template joins its own control tokens and the words of a conversation to one text, in which both look the same.
So a character that no one uses is put behind each such name before, and is looked for and taken out afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator

from wllm_api.errors import TemplateError

# Characters that Unicode keeps free for uses like this one.
_FREE_CHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
# Whose words are typed by someone else than the model and the one who set it up.
_OUTSIDERS = frozenset({"user", "tool", "function", "ipython", "observation"})


class PromptText(str):
    """A prompt; `typed` are the places, start and end, of names of control tokens that are to stay text."""

    typed: tuple[tuple[int, int], ...] = ()


class ControlTokens:
    """The names of a model's control tokens, less those of `shown` in the words of the system and of the model itself.

    Such texts may show how to think or how to call a function, and templates look for these marks in them.
    """

    def __init__(self, names: Iterable[str] = (), shown: Iterable[str] = ()) -> None:
        names = [name for name in names if name.strip()]
        self._all = _any_of(names)
        self._less = _any_of(set(names).difference(shown))

    def mark_for(self, *values: object) -> str | None:
        """A character for `marked` that is in none of the values; None when they name no control token."""
        if not any(self._all.search(text) for value in values for text in _texts(value)):
            return None
        used = {char for value in values for text in _texts(value) for char in text if char in _FREE_CHARACTERS}
        for char in _FREE_CHARACTERS:
            if char not in used:
                return char
        raise TemplateError(
            "The texts name control tokens and have every character that Unicode keeps free. Leave one out."
        )

    def marked(self, value: object, mark: str) -> object:
        """The value with `mark` behind each control token's name in its texts."""
        return _marked(value, mark, self._less)

    def marked_message(self, message: dict[str, object], mark: str) -> dict[str, object]:
        """The same for a message."""
        names = self._all if message.get("role") in _OUTSIDERS else self._less
        return {key: item if key == "role" else _marked(item, mark, names) for key, item in message.items()}

    def unmarked(self, prompt: str, mark: str) -> PromptText:
        """The prompt without its marks, which tells where they were behind a name."""
        # A template may write JSON in ASCII.
        escaped = json.dumps(mark)[1:-1]
        pieces: list[str] = []
        typed: list[tuple[int, int]] = []
        size = 0
        for piece in re.split(f"{mark}|{re.escape(escaped)}", prompt):
            pieces.append(piece)
            size += len(piece)
            # The name at the end of a piece; the last piece ends with the prompt and not with a mark.
            if (name := self._name_at_end(piece)) is not None:
                typed.append((size - len(name), size))
        if typed and typed[-1][1] == size and not prompt.endswith((mark, escaped)):
            typed.pop()
        text = PromptText("".join(pieces))
        text.typed = tuple(typed)
        return text

    def names(self, name: str) -> bool:
        """Whether it is the name of a control token."""
        return self._all.fullmatch(name) is not None

    def parts(self, text: PromptText) -> Iterator[tuple[str, bool]]:
        """The text in parts, and whether each is a control token."""
        start = 0
        for begin, end in (*text.typed, (len(text), len(text))):
            for found in self._all.finditer(text, start, begin):
                yield text[start : found.start()], False
                yield found.group(), True
                start = found.end()
            yield text[start:end], False
            start = end

    def _name_at_end(self, piece: str) -> str | None:
        names = (found.group() for found in self._all.finditer(piece) if found.end() == len(piece))
        return next(names, None)


def _marked(value: object, mark: str, names: re.Pattern[str]) -> object:
    match value:
        case str():
            return names.sub(lambda found: found.group() + mark, value)
        case dict():
            return {key: _marked(item, mark, names) for key, item in value.items()}
        case list():
            return [_marked(item, mark, names) for item in value]
    return value


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    names = set(names)
    return re.compile(_tree(names) if names else "(?!)")


def _tree(names: Collection[str]) -> str:
    # Branches by what the names have in common, since a model may have a thousand; the longest name wins.
    first, last = min(names), max(names)
    length = next((at for at, (one, other) in enumerate(zip(first, last)) if one != other), len(first))
    common = first[:length]
    branches: dict[str, list[str]] = {}
    for name in sorted(names):
        branches.setdefault(name[len(common) : len(common) + 1], []).append(name[len(common) :])
    optional = "?" if branches.pop("", None) else ""
    if not branches:
        return re.escape(common)
    return f"{re.escape(common)}(?:{'|'.join(map(_tree, branches.values()))}){optional}"


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


NO_CONTROL_TOKENS = ControlTokens()
