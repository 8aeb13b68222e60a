"""How families mark their thoughts."""

from __future__ import annotations

from typing import NamedTuple


class Thinking(NamedTuple):
    """The marks around a thought."""

    start: str
    end: str


THINKING = {
    "think": Thinking("<think>", "</think>"),
    "mistral": Thinking("[THINK]", "[/THINK]"),
    "seed": Thinking("<seed:think>", "</seed:think>"),
}
