"""`PoolingEngine`: vectors of texts, step by step, behind the same protocol as the engine that writes text.

A step takes some waiting texts, a text of each request in turn, runs them and tells their vectors: so nobody waits
longer than for a step, and what was aborted before it is never computed. One thread calls everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from wllm_runtime.device_check import check_device
from wllm_runtime.gpu_memory import GpuMemory
from wllm_runtime.pooling.batches import groups_of
from wllm_sched import (
    Abort,
    EngineClosed,
    EngineStats,
    ModelInfo,
    Pool,
    PooledText,
    RequestRefused,
    Submit,
    TextQueue,
    TokenEvent,
)
from wllm_sched.refusal import refuse_impossible_texts
from wllm_sched.text_queue import QueuedText


class Head(Protocol):
    """What an engine runs: a transformer and what makes a vector of its output."""

    def vectors(self, texts: Sequence[PooledText]) -> torch.Tensor:
        """The vectors [texts, size], float32 on the CPU."""


class PoolingEngine:
    """Serves `head`; steps have at most `max_texts` texts and `max_tokens` tokens, or one longer text.

    `normalizes` is whether vectors have length 1 where a request does not say.
    """

    def __init__(
        self,
        head: Head,
        model_info: ModelInfo,
        *,
        max_texts: int,
        max_tokens: int,
        normalizes: bool,
        gpu: GpuMemory | None = None,
    ) -> None:
        self._head: Head | None = head
        self._model_info = model_info
        self._normalizes = normalizes
        self._gpu = gpu
        self._queue = TextQueue(max_texts, max_tokens)
        self._num_steps = self._num_tokens = 0

    @property
    def model_info(self) -> ModelInfo:
        """Facts about the model."""
        return self._model_info

    def check_device(self) -> None:
        """Raise `DeviceLost` unless the device still computes."""
        check_device(torch.device(self._model_info.device))

    def submit(self, request: Submit) -> None:
        """Refuse: raises `RequestRefused`."""
        raise RequestRefused("This model writes no text: it makes vectors or scores of texts. Ask for those.")

    def pool(self, request: Pool) -> None:
        """Queue a request; raises `RequestRefused` for one that can never run."""
        if self._head is None:
            raise EngineClosed("The engine was closed and takes no more work. Start a new engine.")
        info = self._model_info
        refuse_impossible_texts(
            request,
            vocab_size=info.vocab_size,
            max_model_len=info.max_model_len,
            dimensions=(*info.vector_dimensions, info.vector_size),
        )
        self._queue.push(request)

    def abort(self, abort: Abort) -> None:
        """Drop what waits of a request; each of its texts still gets its event."""
        self._queue.abort(abort)

    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return self._queue.has_work

    def step(self) -> list[TokenEvent]:
        """Run one step; an event with the vector of each of its texts. Raises `DeviceLost` when the device is."""
        if self._head is None:
            raise EngineClosed("The engine was closed and takes no more work. Start a new engine.")
        events = self._queue.take_aborted()
        taken = self._queue.take()
        for group in groups_of(taken):
            try:
                vectors = self._head.vectors([queued.text for queued in group])
            except Exception:
                self.check_device()
                raise
            events += [self._event(queued, vector) for queued, vector in zip(group, vectors, strict=True)]
        self._num_steps += bool(taken)
        self._num_tokens += sum(queued.length for queued in taken)
        return events

    def stats(self) -> EngineStats:
        """Counters now; a text counts as a request."""
        return EngineStats(
            num_waiting=self._queue.num_waiting,
            steps_total=self._num_steps,
            prompt_tokens_total=self._num_tokens,
            eager_steps_total=self._num_steps,
            gpu_spilled_bytes=self._gpu.spilled() if self._gpu else 0,
        )

    def close(self) -> None:
        """Release the model with its memory."""
        self._head = None
        if self._gpu is not None:
            self._gpu.release()
            self._gpu = None

    def _event(self, queued: QueuedText, vector: torch.Tensor) -> TokenEvent:
        request = queued.request
        if request.dimensions is not None:
            vector = vector[: request.dimensions]
        if self._normalizes if request.normalize is None else request.normalize:
            vector = torch.nn.functional.normalize(vector, dim=0)
        if not torch.isfinite(vector).all():
            return TokenEvent(
                request.request_id,
                queued.index,
                finish_reason="error",
                error="The model's numbers overflowed for this text. Start the server with --dtype float32.",
                error_code="internal_error",
            )
        return TokenEvent(
            request.request_id, queued.index, finish_reason="stop", vector=vector.numpy().astype("<f4").tobytes()
        )


def longest_rows(max_tokens: int, longest: int) -> Sequence[int]:
    """The lengths of the texts in the largest step: full of texts of `longest` tokens, or one of that length."""
    return [longest] * max(1, max_tokens // longest)
