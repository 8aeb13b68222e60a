"""Work that ends with its client.

A server that asks "are you still there?" between two sends never notices that the client of a whole answer has gone.
So somebody waits on `receive` all the time that the work takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed its connection; nobody reads the answer."""


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone; the request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises `ClientGone` when the client goes first."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await end(task, watch)


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have cleaned up; their results and errors are nobody's concern any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
