"""What a chat template may cost: iterations, seconds, sizes.

A `Meter` counts for one render, in the thread that renders. A template that breaks a limit ends in an error instead of
hanging the server or filling its memory. Operations whose result can be far larger than their operands are checked
before they run, everything else is weighed after.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import jinja2

MAX_SOURCE = 1_000_000  # characters of a template
MAX_ITERATIONS = 1_000_000  # loop bodies, macro calls, function calls, filters, lists made
MAX_SECONDS = 5.0
MAX_SIZE = 16_000_000  # characters of the prompt; elements and characters of any one value on the way
MAX_WORK = 1_000_000_000  # sizes of all values made on the way, added up
MAX_ARGUMENT = 1_000_000  # an integer handed to a function or filter
MAX_INTEGER_BITS = 4096

_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{4})")
_WIDE_BRACES = re.compile(r":[^{}]*(?:\{|\d{4})")


class LimitError(jinja2.TemplateError):
    """A template broke a limit."""


class Meter:
    """Iterations, time and sizes of one render; every method raises `LimitError`."""

    def __init__(self) -> None:
        self._iterations = 0
        self._work = 0
        self._deadline = time.perf_counter() + MAX_SECONDS
        # Weights of the containers seen, each with the container itself, so that its id is not used again. A list that
        # holds another one twice weighs twice as much, which is what printing or comparing it costs.
        self._weights: dict[int, tuple[int, object]] = {}

    def tick(self) -> None:
        """Count one iteration."""
        self._iterations += 1
        if self._iterations > MAX_ITERATIONS:
            raise LimitError(f"it runs more than {MAX_ITERATIONS:,} iterations")
        if time.perf_counter() > self._deadline:
            raise LimitError(f"it runs for more than {MAX_SECONDS:g} seconds")

    def made(self, value: object) -> None:
        """Count one operation and the value that it made."""
        self.tick()
        weight = self._weigh(value)
        check_size(weight)
        self._work += weight
        if self._work > MAX_WORK:
            raise LimitError(f"it makes values of more than {MAX_WORK:,} characters in all")

    def drawn(self, values: Iterable[object]) -> list[object]:
        """The items of an iterator, which would have no size before."""
        items: list[object] = []
        weight = 0
        for item in values:
            self.tick()
            weight += 1 + self._weigh(item)
            check_size(weight)
            items.append(item)
        return items

    def _weigh(self, value: object) -> int:
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, (list, tuple, dict)):
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[0]
        parts: Iterable[object] = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        weight = 1 + len(value) + sum(map(self._weigh, parts))
        self._weights[id(value)] = weight, value
        return weight


def check_size(size: int) -> None:
    """Raise `LimitError` for a value of more than `MAX_SIZE` characters and elements."""
    if size > MAX_SIZE:
        raise LimitError(f"it makes a value of {size:,} characters or elements, the limit is {MAX_SIZE:,}")


def check_arguments(arguments: Iterable[object]) -> None:
    """Raise `LimitError` when an integer among `arguments` could ask for a huge result."""
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_ARGUMENT:
            raise LimitError(f"it hands the number {argument:,} to a function, the limit is {MAX_ARGUMENT:,}")


def check_operation(operator: str, left: object, right: object) -> None:
    """Raise `LimitError` when `left operator right` would be too large to make."""
    if operator == "%" and isinstance(left, str):
        check_percent_format(left)
    elif operator == "*":
        for items, count in ((left, right), (right, left)):
            if isinstance(items, (str, list, tuple)) and isinstance(count, int):
                check_size(len(items) * count)
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_INTEGER_BITS:
            raise LimitError(f"it calculates a number of {bits:,} bits, the limit is {MAX_INTEGER_BITS:,}")


def check_percent_format(text: str) -> None:
    """Raise `LimitError` for a %-format with a width of four digits, or one taken from an argument."""
    if _WIDE_PERCENT.search(text):
        raise LimitError(f"it uses the format {text[:80]!r}, whose width has no limit")


def check_brace_format(text: str) -> None:
    """Raise `LimitError` for a {}-format with a width of four digits, or one taken from an argument."""
    if _WIDE_BRACES.search(text):
        raise LimitError(f"it uses the format {text[:80]!r}, whose width has no limit")


def check_method(text: str, method: str, arguments: tuple[object, ...]) -> None:
    """Raise `LimitError` when the string method would make `text` too large; joins are checked by the caller."""
    match method, arguments:
        case "replace", (str(old), str(new), *_):
            check_size(len(text) + text.count(old) * len(new))
        case "expandtabs", (int(width), *_):
            check_size(len(text) + text.count("\t") * width)
        case "translate", _:
            raise LimitError("it uses translate(), which has no limit; use replace()")
