"""How families mark their thoughts."""

from __future__ import annotations

from typing import NamedTuple


class Thinking(NamedTuple):
    """The marks around a thought; `label` may follow the first one and is not shown."""

    start: str
    end: str
    label: str = ""


THINKING = {
    "think": Thinking("<think>", "</think>"),
    "gemma4": Thinking("<|channel>", "<channel|>", "thought"),
    "mistral": Thinking("[THINK]", "[/THINK]"),
    "seed": Thinking("<seed:think>", "</seed:think>"),
}
