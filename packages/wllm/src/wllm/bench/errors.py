"""What a benchmark raises for the user to read."""

from __future__ import annotations


class BenchError(Exception):
    """A benchmark cannot run as asked; the message says what happened, the value seen, and the fix."""
