"""One request's events on their way from the engine process to its reader."""

from __future__ import annotations

from collections.abc import AsyncIterator

from wllm_sched.messages import TokenEvent


class RequestStream(AsyncIterator[TokenEvent]):
    """Async iterator over the events of one request; it always ends, each sample with one final event.

    Memory is bounded: events that wait for the reader are merged, one per sample.
    """

    request_id: int

    async def __anext__(self) -> TokenEvent:
        raise NotImplementedError

    def abort(self, index: int | None = None) -> None:
        """End the request, or its sample `index`, in the engine; its final events still come. Never blocks."""
        raise NotImplementedError
