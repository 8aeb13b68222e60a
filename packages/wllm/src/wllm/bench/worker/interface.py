"""What every engine of a worker offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Unsupported(Exception):
    """The engine cannot do what the row asks for."""


class WrongAnswer(Exception):
    """The engine gave fewer or more tokens than it was asked for, so its time means nothing."""


class TimedEngine(Protocol):
    """A loaded model. Prompts are token ids; answers are greedy and exactly as long as asked for, whatever they say."""

    def generate(self, prompts: Sequence[Sequence[int]], output_lengths: Sequence[int]) -> float:
        """Answer all prompts, given at once; the seconds that took. Raises `Unsupported` or `WrongAnswer`."""

    def close(self) -> Mapping[str, int]:
        """Release the model; what the engine counted that explains its times, by name. Most count nothing."""


def check_lengths(got: Sequence[int], wanted: Sequence[int]) -> None:
    """Raises `WrongAnswer` unless every answer has the length that was asked for."""
    if list(got) != list(wanted):
        first = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        raise WrongAnswer(
            f"{len(wanted)} answers were asked for and {len(got)} came; answer {first} has "
            f"{list(got)[first : first + 1]} tokens instead of {list(wanted)[first : first + 1]}"
        )
