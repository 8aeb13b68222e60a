"""One client request for vectors at work in the engine.

Counts as one waiting request, however many texts it has: the engine takes its texts in turn with those of others.
Aborts what is left when the reader goes away.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Sequence

from wllm_api.client import EventSource
from wllm_api.errors import EngineUnavailable
from wllm_api.failures import failure_of
from wllm_api.hosting import LoadedModel
from wllm_api.http_errors import ServerFault
from wllm_api.record import current_record
from wllm_api.request_times import RequestTimes
from wllm_api.serving import Serving
from wllm_sched.pooling import PooledText


class Pooling:
    """The vectors of `texts`; `dimensions` and `normalize` as in `Pool`."""

    def __init__(
        self,
        serving: Serving,
        model: LoadedModel,
        texts: Sequence[PooledText],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> None:
        self._serving = serving
        self._engine = model.engine
        self._texts = texts
        self._dimensions = dimensions
        self._normalize = normalize
        self._stream: EventSource | None = None
        self._times = RequestTimes(model.metrics)
        self._record = current_record()
        self._record.times.append(self._times)

    @property
    def num_waiting(self) -> int:
        """One, until it has its end."""
        return 1

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(text.token_ids) for text in self._texts)

    def abort(self) -> None:
        """End it in the engine."""
        if self._stream is not None:
            self._stream.abort()

    async def vectors(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """(number of a text, its vector as little-endian float32), as they come; raises `HttpError`."""
        if not self._texts:
            return
        self._serving.admit()
        self._serving.running.add(self)
        reason = "abort"
        left = len(self._texts)
        try:
            try:
                self._stream = self._engine.pool(self._texts, dimensions=self._dimensions, normalize=self._normalize)
            except EngineUnavailable:
                raise self._serving.not_ready(self._engine.state) from None
            async for event in self._stream:
                if event.vector is None:
                    reason = event.finish_reason or reason
                    raise failure_of(event)
                yield event.index, event.vector
                left -= 1
                # A step brings many vectors at once, and what is made of each takes its time: others come in between.
                await asyncio.sleep(0)
            if left:
                raise ServerFault("The engine ended the request without an answer.")
            reason = "stop"
        finally:
            self._serving.running.discard(self)
            self.abort()
            self._times.end(reason, (self.num_prompt_tokens, 0))
            self._record.finish_reasons.append(reason)
            self._record.num_prompt_tokens += self.num_prompt_tokens


def numbers(vector: bytes) -> tuple[float, ...]:
    """The numbers of a vector."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)
