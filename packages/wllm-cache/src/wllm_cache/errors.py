"""The exceptions of wllm-cache.

CacheError
├── InvalidSize (ValueError)    a pool that cannot exist
└── OutOfBlocks                 more blocks asked for than are free; nothing was changed
"""

from __future__ import annotations


class CacheError(Exception):
    """Base of all errors of this package."""


class InvalidSize(CacheError, ValueError):
    """A pool was asked for with a size that makes no sense."""


class OutOfBlocks(CacheError):
    """`needed` blocks were asked for, only `free` are free; the pool and the table are as before."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(
            f"The pool is out of blocks: {needed} needed, {free} free. Release a table first, or make the pool larger."
        )
        self.needed = needed
        self.free = free

    def __reduce__(self) -> tuple[type[OutOfBlocks], tuple[int, int]]:
        return type(self), (self.needed, self.free)
