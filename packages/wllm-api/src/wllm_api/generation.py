"""One client request at work in the engine: its prompts, their samples, their texts.

Submits every prompt, turns token events into text, aborts what a stop string has ended, and whatever is left when the
reader goes away. Streamed and whole answers both read `deltas()`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from wllm_api.client import EventSource
from wllm_api.errors import EngineUnavailable
from wllm_api.failures import failure_of
from wllm_api.hosting import LoadedModel
from wllm_api.http_errors import ServerFault
from wllm_api.record import current_record
from wllm_api.request_times import RequestTimes
from wllm_api.serving import Serving
from wllm_api.text import OutputText, TextDelta
from wllm_sched.messages import TokenEvent
from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams


class Job(NamedTuple):
    """One prompt and what is asked of it."""

    token_ids: list[int]
    params: SamplingParams


class Generation:
    """The answers to `jobs`; choice `c` is sample `c % n` of prompt `c // n`; `kept` as in `OutputText`."""

    def __init__(
        self, serving: Serving, model: LoadedModel, jobs: Sequence[Job], *, kept: frozenset[int] = frozenset()
    ) -> None:
        self._serving = serving
        self._model = model
        self._jobs = jobs
        self._n = jobs[0].params.n
        self._outputs = [
            OutputText(model.tokenizer, job.token_ids, job.params, kept=kept) for job in jobs for _ in range(self._n)
        ]
        self._cached = [0] * len(jobs)
        self._started = [False] * len(jobs)
        self._held: list[list[TokenEvent]] = [[] for _ in jobs]
        self._streams: list[EventSource] = []
        self._times = [RequestTimes(model.metrics) for _ in self._outputs]
        self.prompt_logprobs: list[tuple[TokenLogprobs | None, ...] | None] = [None] * len(jobs)
        self._record = current_record()
        self._record.times += self._times

    @property
    def times(self) -> Sequence[RequestTimes]:
        """The clock of each choice."""
        return self._times

    @property
    def num_waiting(self) -> int:
        """Prompts without a first token."""
        return self._started.count(False)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(job.token_ids) for job in self._jobs)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        return sum(self._cached)

    @property
    def num_completion_tokens(self) -> int:
        """Tokens of all answers so far."""
        return sum(output.num_tokens for output in self._outputs)

    def abort(self) -> None:
        """End all prompts in the engine."""
        for stream in self._streams:
            stream.abort()

    async def deltas(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """(choice, what it gained) until every choice has its end; raises `HttpError`, before the first or later."""
        self._serving.admit()
        self._serving.running.add(self)
        unfinished = len(self._outputs)
        try:
            self._submit()
            async with aclosing(_merged(self._streams)) as events:
                async for number, event in events:
                    for choice, delta in self._take(number, event):
                        unfinished -= delta.finish_reason is not None
                        yield choice, delta
                    if not unfinished:
                        return
            raise ServerFault("The engine ended the request without an answer.")
        finally:
            # Also reached when the reader has gone: nothing may run on for nobody.
            self._serving.running.discard(self)
            self.abort()
            for choice in range(len(self._times)):
                self._end(choice, "abort")
            self._note_figures()

    def _submit(self) -> None:
        metrics = self._model.metrics
        for job in self._jobs:
            metrics.params_n.observe(job.params.n)
            if job.params.max_tokens is not None:
                metrics.params_max_tokens.observe(job.params.max_tokens)
            try:
                self._streams.append(self._model.engine.submit(job.token_ids, job.params))
            except EngineUnavailable:
                raise self._serving.not_ready(self._model.engine.state) from None

    def _take(self, number: int, event: TokenEvent) -> list[tuple[int, TextDelta]]:
        self._started[number] = True
        self._cached[number] = max(self._cached[number], event.num_cached_tokens)
        if event.prompt_logprobs is not None:
            self.prompt_logprobs[number] = event.prompt_logprobs
        choice = self._choice(number, event)
        if event.start_times is not None:
            self._times[choice].started(event.start_times)
        if event.finish_reason in ("error", "abort") and not self._outputs[choice].finished:
            self._end(choice, event.finish_reason)
            raise failure_of(event)
        held = self._held[number]
        held.append(event)
        if self._jobs[number].params.prompt_logprobs is not None and self.prompt_logprobs[number] is None:
            # They come with sample 0, and every choice may have to show them before its own text.
            return []
        self._held[number] = []
        return [gain for one in held for gain in self._gain(number, one)]

    def _gain(self, number: int, event: TokenEvent) -> list[tuple[int, TextDelta]]:
        choice = self._choice(number, event)
        output = self._outputs[choice]
        if output.finished:
            return []
        arrived = time.perf_counter()
        delta = output.push(event)
        if self._record.steps is not None:
            self._record.steps.note(choice, arrived)
        self._times[choice].tokens(len(delta.token_ids))
        if delta.stop_hit:
            self._streams[number].abort(event.index)
        if delta.finish_reason is not None:
            self._end(choice, delta.finish_reason)
        return [(choice, delta)]

    def _end(self, choice: int, reason: str) -> None:
        times = self._times[choice]
        if not times.finished:
            self._record.finish_reasons.append(reason)
            times.end(reason, self._num_tokens(choice))

    def _note_figures(self) -> None:
        self._model.metrics.longest_answer.observe(max(output.num_tokens for output in self._outputs))
        record = self._record
        record.num_prompt_tokens += self.num_prompt_tokens
        record.num_cached_tokens += self.num_cached_tokens
        record.num_generated_tokens += self.num_completion_tokens

    def _choice(self, number: int, event: TokenEvent) -> int:
        return number * self._n + event.index

    def _num_tokens(self, choice: int) -> tuple[int, int]:
        return len(self._jobs[choice // self._n].token_ids), self._outputs[choice].num_tokens


async def _merged(streams: Sequence[EventSource]) -> AsyncGenerator[tuple[int, TokenEvent], None]:
    if len(streams) == 1:
        async for event in streams[0]:
            yield 0, event
        return
    # Bounded, so that the streams do the merging when the reader is slow.
    queue: asyncio.Queue[tuple[int, TokenEvent | None]] = asyncio.Queue(maxsize=len(streams))

    async def pump(number: int, stream: EventSource) -> None:
        async for event in stream:
            await queue.put((number, event))
        await queue.put((number, None))

    pumps = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        open_streams = len(streams)
        while open_streams:
            number, merged = await queue.get()
            if merged is None:
                open_streams -= 1
            else:
                yield number, merged
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
