"""`Scheduler`: continuous batching. Requests in, step plans out, tokens back in, events out.

Owns every request's tokens and counters, and who holds which slot and blocks. There is no prefill phase and no decode
phase: each running sample has computed tokens that chase its known ones. A plan advances the counters when it is made,
so it must be launched before the next call; results come back through `commit`, oldest plan first. Never waits, never
touches a device, knows no text. One thread calls it, usually `EngineLoop`.

Steps run in order on the device. So blocks and slots of a sample that ends are reused at once, even while rows of it
are in flight: whatever those still write, a later step overwrites before it reads. Preemption is the exception (I9):
the tokens in flight are needed to compute the sample again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from wllm_cache import BlockPool
from wllm_sched.admission import Admission
from wllm_sched.chunking import ChunkPolicy, TimedChunks
from wllm_sched.config import SchedulerConfig
from wllm_sched.errors import RequestRefused
from wllm_sched.messages import Abort, EngineStats, FinishReason, Submit, TokenEvent
from wllm_sched.plan import BlockCopy, NewBlocks, NewSlot, Row, StepPlan, StepResult, TokenLogprobs
from wllm_sched.refusal import refuse_impossible
from wllm_sched.request import NO_SLOT, Request, Sample, make_request
from wllm_sched.running import RunningSet
from wllm_sched.waiting import WaitingLine


@dataclass(slots=True)
class _Draft:
    """A plan while it is being made."""

    rows: list[Row] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    chunk_rows: list[Row] = field(default_factory=list)
    chunk_samples: list[Sample] = field(default_factory=list)
    new_slots: list[NewSlot] = field(default_factory=list)
    new_blocks: list[NewBlocks] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)


@dataclass(slots=True)
class _Flight:
    """A plan that has not been committed, and the sample of each of its rows."""

    plan: StepPlan
    samples: list[Sample]


class Scheduler:
    """Plans steps for the requests it is given, within `config`, with the blocks of `pool`.

    `chunks` chooses prefill chunk sizes; by default they follow from `config.max_stall_ms`. A request ends with
    "length" where the context ends, or the whole pool.
    """

    def __init__(self, config: SchedulerConfig, pool: BlockPool, chunks: ChunkPolicy | None = None) -> None:
        self.config = config
        self.pool = pool
        self.chunks = TimedChunks(config.max_stall_ms) if chunks is None else chunks
        self._num_cache_tokens = pool.num_blocks * pool.block_size
        self._requests: dict[int, Request] = {}
        self._waiting = WaitingLine()
        self._running = RunningSet(config.max_num_seqs, config.max_running)
        self._admission = Admission(pool, config.enable_prefix_caching)
        self._flights: deque[_Flight] = deque()
        self._just_planned: list[Sample] = []
        self._events: list[TokenEvent] = []
        self._num_submitted = 0
        self._num_samples = 0
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_preemptions = 0
        self._num_aborts_in_flight = 0
        self._num_chunks = 0
        self._max_in_flight = 0

    @property
    def num_in_flight(self) -> int:
        """Plans that wait for their commit."""
        return len(self._flights)

    @property
    def has_work(self) -> bool:
        """Whether a request, a plan in flight or an event is left."""
        return bool(self._requests or self._flights or self._events)

    def submit(self, submit: Submit) -> None:
        """Queue a request; raises `RequestRefused` for one that can never run."""
        prompt, params = submit.prompt_token_ids, submit.params
        refuse_impossible(self.config, self._num_cache_tokens, prompt, params)
        if submit.request_id in self._requests:
            raise RequestRefused(f"Request id {submit.request_id} is in use. Give every request an id of its own.")
        threshold = self.config.length_salt_above
        salted_length = len(prompt) if threshold is not None and len(prompt) > threshold else 0
        request = make_request(
            submit.request_id,
            prompt,
            params,
            pool=self.pool,
            arrival=self._num_submitted,
            max_num_tokens=min(self.config.max_model_len, self._num_cache_tokens + 1),
            eos_token_ids=self.config.eos_token_ids,
            salt=b"%d:%b" % (salted_length, params.cache_salt.encode("utf-8", "surrogatepass")),
        )
        self._num_submitted += 1
        self._num_samples += params.n
        self._requests[submit.request_id] = request
        self._waiting.push(request.samples[0])

    def abort(self, abort: Abort) -> None:
        """End a request, or one sample of it, now; unknown and finished ones are ignored."""
        self._after_launch()
        request = self._requests.get(abort.request_id)
        if request is None:
            return
        for sample in request.samples:
            if not sample.finished and abort.index in (None, sample.index):
                if any(sample in flight.samples for flight in self._flights):
                    self._num_aborts_in_flight += 1
                self._end(sample, "abort")

    def plan(self) -> StepPlan | None:
        """The next step, which must be launched; None: commit what is in flight, then ask again."""
        self._after_launch()
        if self.pool.num_free < len(self._running.decoding) and not self._make_room():
            return None
        draft = _Draft()
        self._plan_decodes(draft)
        self._plan_prefill(draft)
        num_decode_rows = len(draft.rows)
        rows = (*draft.rows, *draft.chunk_rows)
        if not rows:
            assert self._flights or not self._num_samples, "Stuck: nothing in flight, nothing to plan, work left"
            return None
        plan = StepPlan(
            step=self._num_steps,
            rows=rows,
            new_slots=tuple(draft.new_slots),
            new_blocks=tuple(draft.new_blocks),
            copies=tuple(draft.copies),
            num_decode_rows=num_decode_rows,
        )
        self._num_steps += 1
        self._flights.append(_Flight(plan, draft.samples + draft.chunk_samples))
        self._max_in_flight = max(self._max_in_flight, len(self._flights))
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """Take in what `plan`, the oldest in flight, produced; `take_events` then tells of it."""
        self._after_launch()
        flight = self._flights.popleft()
        assert flight.plan is plan, f"I14: step {plan.step} is committed before step {flight.plan.step}"
        assert len(result.tokens) == len(result.logprobs) == sum(row.samples for row in plan.rows), (
            f"I14: step {plan.step} returned {len(result.tokens)} tokens"
        )
        outputs = iter(zip(result.tokens, result.logprobs))
        for (slot, start, count, draws), sample in zip(plan.rows, flight.samples):
            token, logprob = next(outputs) if draws else (None, None)
            if sample.finished:
                continue
            if slot in result.errors:
                self._fail(sample.request, result.errors[slot])
                continue
            if sample.scores is not None:
                sample.scores += result.prompt_logprobs.get(slot, ())
            if token is not None:
                self._append(sample, token, logprob, start + count)
            elif sample.request.scores_only and start + count == len(sample.token_ids):
                self._end(sample, "length")

    def take_events(self) -> list[TokenEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes, for example because the weights changed."""
        assert not self._flights, "I9: the prefix cache is reset with steps in flight"
        self._after_launch()
        self.pool.reset()

    def stats(self) -> EngineStats:
        """Counters now."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=self._num_samples - len(self._running),
            num_blocks=self.pool.num_blocks,
            num_free_blocks=self.pool.num_free,
            steps_total=self._num_steps,
            prompt_tokens_total=self._num_prompt_tokens,
            generation_tokens_total=self._num_generated_tokens,
            prefix_cache_queries_total=self._admission.num_queried_tokens,
            prefix_cache_hits_total=self._admission.num_hit_tokens,
            preemptions_total=self._num_preemptions,
            aborts_in_flight_total=self._num_aborts_in_flight,
            prefill_chunks_total=self._num_chunks,
            max_in_flight_seen=self._max_in_flight,
        )

    def _after_launch(self) -> None:
        # Only what has been launched may be shared: a plan's own rows must not read what it writes.
        for sample in self._just_planned:
            request = sample.request
            if self.config.enable_prefix_caching:
                sample.table.seal(sample.token_ids, sample.computed)
            if sample.computed >= request.num_prompt_tokens:
                if not request.prompt_counted:
                    request.prompt_counted = True
                    self._num_prompt_tokens += request.num_prompt_tokens
                if request.held and request.prompt_table is None:
                    request.prompt_table = sample.table.share(request.num_prompt_tokens)
                    for sibling in request.held:
                        self._waiting.push(sibling)
        self._just_planned.clear()

    def _plan_decodes(self, draft: _Draft) -> None:
        rows, new_blocks = draft.rows, draft.new_blocks
        block_size = self.pool.block_size
        decoding = self._running.decoding
        draft.samples += decoding.values()
        exhausted = []
        for slot, sample in decoding.items():
            start = sample.computed
            rows.append(Row(slot, start, 1, 1))
            if start % block_size == 0 and start == sample.table.num_tokens:
                new_blocks.append(NewBlocks(slot, start // block_size, sample.table.grow(start + 1)))
            sample.computed = start + 1
            if start + 1 == sample.limit:
                exhausted.append(slot)
        for slot in exhausted:
            del decoding[slot]

    def _plan_prefill(self, draft: _Draft) -> None:
        room = self.config.max_num_batched_tokens - len(draft.rows)
        if draft.rows:
            room = min(room, self.chunks.allowance())
        unplanned = deque(self._running.prefilling)
        may_admit = True
        while room > 0:
            head = self._waiting.head() if may_admit and not self._running.is_full else None
            if head is not None and (not unplanned or head < unplanned[0]):
                may_admit = self._admit(head, draft)
                if may_admit:
                    room -= self._plan_chunk(head, room, draft)
            elif unplanned:
                room -= self._plan_chunk(unplanned.popleft(), room, draft)
            else:
                break

    def _plan_chunk(self, sample: Sample, room: int, draft: _Draft) -> int:
        start, known = sample.computed, len(sample.token_ids)
        count = min(known - start, room)
        sample.computed = start + count
        is_last = sample.computed == known
        row = Row(sample.slot, start, count, int(is_last and not sample.request.scores_only))
        if row.count == row.samples == 1:
            draft.rows.append(row)
            draft.samples.append(sample)
        else:
            draft.chunk_rows.append(row)
            draft.chunk_samples.append(sample)
        if is_last:
            self._running.finish_prefill(sample)
        self._just_planned.append(sample)
        self._num_chunks += 1
        return count

    def _admit(self, sample: Sample, draft: _Draft) -> bool:
        admitted = self._admission.admit(sample, len(self._running), draft.copies)
        if not admitted and not len(self._running) and self._drop_prompt_tables():
            admitted = self._admission.admit(sample, 0, draft.copies)
        if admitted:
            self._waiting.pop()
            self._running.enter(sample)
            request = sample.request
            params = request.params if sample.scores is not None else request.params_without_scores
            slot = sample.slot
            draft.new_slots.append(
                NewSlot(slot, tuple(sample.token_ids), request.num_prompt_tokens, params, sample.seed)
            )
            draft.new_blocks.append(NewBlocks(slot, 0, tuple(sample.table.block_ids)))
            self._release_hold(sample)
        return admitted

    def _make_room(self) -> bool:
        """Whether every decoding sample can have its next block; preempts for it unless something is in flight."""
        while True:
            needed = sum(sample.computed == sample.table.num_tokens for sample in self._running.decoding.values())
            if needed <= self.pool.num_free:
                return True
            if self._drop_prompt_tables():
                continue
            if self._flights:
                return False
            self._preempt(self._running.last())

    def _preempt(self, sample: Sample) -> None:
        assert not self._flights, "I9: a preemption with steps in flight"
        self._running.leave(sample)
        sample.table.release()
        sample.computed = 0
        if sample.scores is not None:
            sample.scores = [None]
        self._waiting.push(sample)
        self._num_preemptions += 1

    def _drop_prompt_tables(self) -> bool:
        requests = [request for request in self._requests.values() if request.prompt_table is not None]
        for request in requests:
            request.drop_prompt_table()
        return bool(requests)

    def _append(self, sample: Sample, token: int, logprob: TokenLogprobs | None, end: int) -> None:
        request, token_ids = sample.request, sample.token_ids
        assert end == len(token_ids), f"I10: a token for position {end} of {len(token_ids)} known"
        token_ids.append(token)
        self._num_generated_tokens += 1
        if end % self.pool.block_size == 0 and self.config.enable_prefix_caching:
            sample.table.seal(token_ids, end)
        event = TokenEvent(
            request.request_id,
            sample.index,
            (token,),
            None if logprob is None else (logprob,),
            num_cached_tokens=request.num_cached_tokens,
        )
        if sample.scores is not None:
            event.prompt_logprobs = self._take_scores(sample)
        if token in request.stop_ids and end + 1 - request.num_prompt_tokens >= request.params.min_tokens:
            event.finish_reason = "stop"
            event.stop_token_id = token
        elif end == sample.limit:
            event.finish_reason = "length"
        self._events.append(event)
        if event.finish_reason is not None:
            self._retire(sample)

    def _take_scores(self, sample: Sample) -> tuple[TokenLogprobs | None, ...] | None:
        scores, sample.scores = sample.scores, None
        if scores is None:
            return None
        assert len(scores) == sample.request.num_prompt_tokens, f"The runner returned {len(scores)} prompt logprobs"
        return tuple(scores)

    def _end(self, sample: Sample, reason: FinishReason, error: str | None = None) -> None:
        """End a sample without a new token."""
        event = TokenEvent(sample.request.request_id, sample.index, finish_reason=reason, error=error)
        event.num_cached_tokens = sample.request.num_cached_tokens
        if reason == "length":
            event.prompt_logprobs = self._take_scores(sample)
        self._events.append(event)
        self._retire(sample)

    def _fail(self, request: Request, error: str) -> None:
        for sample in request.samples:
            if not sample.finished:
                sample.table.forget()
                self._end(sample, "error", error)

    def _retire(self, sample: Sample) -> None:
        """I13: the sample's final event is out; give back what it holds."""
        request = sample.request
        assert not sample.finished, "I13: a second final event"
        sample.finished = True
        if sample.slot != NO_SLOT:
            self._running.leave(sample)
        sample.table.release()
        self._num_samples -= 1
        request.num_unfinished -= 1
        self._release_hold(sample)
        if request.num_unfinished == 0:
            del self._requests[request.request_id]

    def _release_hold(self, sample: Sample) -> None:
        """Settle what `sample`, which runs or ended, means for siblings that wait for the prompt."""
        request = sample.request
        if sample in request.held:
            request.held.remove(sample)
            if not request.held:
                request.drop_prompt_table()
        elif sample.finished and request.held and request.prompt_table is None:
            # It was to compute the prompt: the next one takes that over.
            self._waiting.push(request.held.pop(0))
