"""Checks of single values, for `SamplingParams` and `SchedulerConfig`: type, range, and a message in three parts.

Private to the package. Each check returns the value in its plain Python type (numpy scalars become int and float), or
raises `InvalidParameter`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

from wllm_sched.errors import InvalidParameter


def integer(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """An integer from `low` to `high`; a bool is none."""
    if isinstance(value, bool):
        raise _wrong(name, value, "an integer")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _wrong(name, value, "an integer") from None
    if (low is not None and number < low) or (high is not None and number > high):
        raise _outside(name, value, low, high)
    return number


def number(name: str, value: object, low: float | None = None, high: float | None = None) -> float:
    """A finite number from `low` to `high`; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(name, value, "a number")
    result = float(value)
    if not math.isfinite(result):
        raise _wrong(name, value, "a finite number")
    if (low is not None and result < low) or (high is not None and result > high):
        raise _outside(name, value, low, high)
    return result


def boolean(name: str, value: object) -> bool:
    """True or False, nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def text(name: str, value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise _wrong(name, value, "a string")
    return value


def texts(name: str, value: object) -> tuple[str, ...]:
    """Non-empty strings."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _wrong(name, value, "a list of strings")
    for entry in value:
        if not isinstance(entry, str) or not entry:
            raise InvalidParameter(
                name, f"{name} must hold non-empty strings, but one entry is {entry!r}. Leave it out or give its text."
            )
    return tuple(value)


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """Integers from 0; the vocabulary is checked where it is known."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(name, value, "a list of token ids")
    return tuple(integer(name, entry, 0) for entry in value)


def token_id_lists(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    """Non-empty lists of token ids."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _wrong(name, value, "a list of lists of token ids")
    lists = tuple(token_ids(name, entry) for entry in value)
    if () in lists:
        raise InvalidParameter(
            name, f"{name} must hold non-empty lists, but is {_shown(value)}. Leave out the empty one."
        )
    return lists


def biases(name: str, value: object, limit: float) -> dict[int, float]:
    """Numbers of at most `limit` in size, by token id."""
    if not isinstance(value, Mapping):
        raise _wrong(name, value, "a mapping from token id to number")
    return {integer(name, token_id, 0): number(name, bias, -limit, limit) for token_id, bias in value.items()}


def _wrong(name: str, value: object, wanted: str) -> InvalidParameter:
    return InvalidParameter(name, f"{name} must be {wanted}, but is {_shown(value)}. Give {wanted} or leave it out.")


def _outside(name: str, value: object, low: float | None, high: float | None) -> InvalidParameter:
    allowed = f"at least {low}" if high is None else f"at most {high}" if low is None else f"from {low} to {high}"
    return InvalidParameter(name, f"{name} must be {allowed}, but is {_shown(value)}. Give a value in that range.")


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
