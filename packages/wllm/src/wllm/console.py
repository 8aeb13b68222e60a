"""The terminal: UTF-8 with a replacement for what is none, errors as one message, settings and sizes as text."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence


def use_utf8() -> None:
    """Make standard input, output and error UTF-8; what cannot be read or shown is replaced, never an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    # A terminal knows its own encoding. Of a pipe or file Windows takes the ANSI code page; some begin with a mark.
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace")


def say(text: str = "", *, end: str = "\n") -> None:
    """Print to standard output at once."""
    print(text, end=end, flush=True)  # noqa: T201


def complain(text: str) -> None:
    """Print to standard error at once."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def settings_table(rows: Sequence[tuple[str, str, str]]) -> str:
    """Resolved settings, one a line: name, value, and the reason for the value."""
    name_width = max((len(name) for name, _, _ in rows), default=0)
    value_width = max((len(value) for _, value, _ in rows if len(value) <= 24), default=0)
    return "\n".join(f"  {name:<{name_width}}  {value:<{value_width}}  {reason}" for name, value, reason in rows)


def size_text(num_bytes: float) -> str:
    """A size in GiB, or in MiB below one."""
    mib = num_bytes / 2**20
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"
