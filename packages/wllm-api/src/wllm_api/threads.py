"""Work that may take long, done beside the event loop: there everybody waits, here nobody else does.

Python code in a thread lets the loop in within milliseconds. What holds Python's lock for as long as its input is long
(JSON in C, for one) must be kept short where the input comes from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from wllm_api.record import current_record

T = TypeVar("T")

# Characters. A shorter text is tokenised faster than a thread is woken.
LONG_TEXT = 2_000
LONG_BODY = 64 * 1024


async def in_thread(long: bool, work: Callable[[], T]) -> T:
    """The result of `work`, from a worker thread when it takes `long`, or might, since the request's body is long."""
    if long or current_record().num_body_bytes > LONG_BODY:
        return await asyncio.to_thread(work)
    return work()
