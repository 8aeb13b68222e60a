"""What the values of the `bench` flags mean; each function raises `ArgumentTypeError` for another text."""

from __future__ import annotations

import argparse
import math


def count(text: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {least}")
    return int(text)


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def two_or_more(text: str) -> int:
    """Tokens of an answer: the first is not a decode step."""
    return count(text, 2)


def counts(text: str) -> tuple[int, ...]:
    """Numbers from 1, such as 1,32."""
    return tuple(count(part) for part in text.split(","))


def batch_of(text: str) -> tuple[int, int]:
    """(number of prompts, tokens of each), such as 8x4096."""
    number, _, length = text.partition("x")
    if not (number.isdecimal() and length.isdecimal() and int(number) and int(length)):
        raise argparse.ArgumentTypeError(f"{text} is not a number of prompts and their length, such as 8x4096")
    return int(number), int(length)


def names(text: str) -> tuple[str, ...]:
    """Names, such as wllm,vllm."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def assignment(text: str) -> tuple[str, str]:
    """(name, value) of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text} has no NAME=VALUE")
    return name, value
