"""Counts calls of Python functions in the packages of the house. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType


def count_calls(work: Callable[[], object], packages: tuple[str, ...]) -> int:
    """How many functions of these packages `work()` calls; the same on every machine and version of Python.

    A comprehension is a call in some versions and none in others, so it is never counted; a generator counts each time
    that it goes on.
    """
    seen: dict[str, bool] = {}
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event != "call":
            return
        code = frame.f_code
        ours = seen.get(code.co_filename)
        if ours is None:
            ours = seen[code.co_filename] = any(package in Path(code.co_filename).parts for package in packages)
        if ours and not code.co_name.startswith("<"):
            count += 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count
