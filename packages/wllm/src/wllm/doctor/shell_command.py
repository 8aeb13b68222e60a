"""`ShellCommand`: a command that mends something, to be pasted by a person or run with their consent."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A program and its arguments; as text it can be pasted into PowerShell or a shell."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        first, *rest = map(_quoted, self.words)
        # PowerShell takes a quoted program for a text unless it is told to call it.
        call = "& " if sys.platform == "win32" and first.startswith('"') else ""
        return call + " ".join([first, *rest])


def pip(*arguments: str) -> ShellCommand:
    """pip for this Python; uv's, where the environment was made without pip, as uv makes them."""
    program = sys.executable or "python"
    if importlib.util.find_spec("pip") is None:
        first, *rest = arguments
        return ShellCommand(("uv", "pip", first, "--python", program, *rest))
    return ShellCommand((program, "-m", "pip", *arguments))


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./\\~-]+", word) else f'"{word}"'
