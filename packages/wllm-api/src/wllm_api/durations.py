"""Lengths of time as Ollama's API and the command line write them: "300", "5m", "1h30m"; below 0 stands for ever."""

from __future__ import annotations

import math
import re

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(f"({_NUMBER})({'|'.join(_UNITS)})")
_WHOLE = re.compile(f"[+-]?(?:{_NUMBER}|(?:{_PART.pattern})+)")
_LONGEST = 64


def seconds_of(text: str) -> float:
    """Seconds of a number of seconds or of numbers with units; infinite when it is negative. Raises `ValueError`."""
    if len(text) > _LONGEST or not _WHOLE.fullmatch(text):
        raise ValueError("must be a number of seconds or a duration such as '5m'")
    parts = _PART.findall(text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else abs(float(text))
    return math.inf if text.startswith("-") and seconds else seconds
