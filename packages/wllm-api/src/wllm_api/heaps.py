"""The heaps of glibc: as it comes each thread has its own, which keeps the room of the largest body it has read."""

from __future__ import annotations

import contextlib
import ctypes
import sys

# M_ARENA_MAX of malloc.h.
_ARENA_MAX = -8
_MOST_HEAPS = 2


def share_heaps() -> None:
    """Let all threads share two heaps, from before the first thread allocates on; nothing where there is no glibc."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).mallopt(_ARENA_MAX, _MOST_HEAPS)
