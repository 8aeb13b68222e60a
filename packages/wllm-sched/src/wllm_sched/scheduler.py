"""`Scheduler`: continuous batching. Requests in, step plans out, tokens back in, events out.

Owns every request's tokens and counters, and who holds which slot and blocks. There is no prefill phase and no decode
phase: each running sample has computed tokens that chase its known ones. A plan advances the counters when it is made,
so it must be launched before the next call; results come back through `commit`, oldest plan first. Never waits, never
touches a device, knows no text. One thread calls it, usually `EngineLoop`.

Steps run in order on the device. So blocks and slots of a sample that ends are reused at once, even while rows of it
are in flight: whatever those still write, a later step overwrites before it reads. Preemption is the exception (I9):
the tokens in flight are needed to compute the sample again.

With blocks on the host, a sample whose prefix is there gets a slot and blocks at once, and its rows are planned when
its swaps are known to be done; only if there is nothing else to do, the device itself waits for them.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

from wllm_cache import BlockPool
from wllm_sched.admission import Admission
from wllm_sched.chunking import ChunkPolicy, StepChunks
from wllm_sched.compiling import CompilingLine
from wllm_sched.config import SchedulerConfig
from wllm_sched.counters import Counters
from wllm_sched.draft import Draft, Flight
from wllm_sched.errors import GrammarFailed, RequestRefused
from wllm_sched.grammar import GrammarCompiler
from wllm_sched.messages import Abort, EngineStats, FinishReason, Submit, TokenEvent
from wllm_sched.plan import NewBlocks, Row, StepPlan, StepResult, TokenLogprobs
from wllm_sched.refusal import refuse_impossible
from wllm_sched.request import NO_SLOT, Request, Sample, make_request
from wllm_sched.running import RunningSet
from wllm_sched.waiting import WaitingLine


class Scheduler:
    """Plans steps for the requests it is given, within `config`, with the blocks of `pool`.

    `chunks` chooses prefill chunk sizes beside decodes; by default they follow from `config`. A request ends with
    "length" where the context ends, or the whole pool. Without `grammars`, requests with one are refused.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        chunks: ChunkPolicy | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.config = config
        self.pool = pool
        self.chunks = StepChunks.timed(config.max_stall_ms, config.max_step_ms, chunks)
        self._block_size = pool.block_size
        self._num_cache_tokens = pool.num_blocks * pool.block_size
        self._requests: dict[int, Request] = {}
        self._grammars = grammars
        self._compiling = CompilingLine()
        self._waiting = WaitingLine()
        self._running = RunningSet(config.max_num_seqs, config.max_running)
        self._admission = Admission(pool, config.enable_prefix_caching)
        self._flights: deque[Flight] = deque()
        self._just_planned: list[Sample] = []
        self._events: list[TokenEvent] = []
        self._num_submitted = 0
        self._num_samples = 0
        self._counters = Counters()

    @property
    def num_in_flight(self) -> int:
        """Plans that wait for their commit."""
        return len(self._flights)

    @property
    def has_work(self) -> bool:
        """Whether a request, a plan in flight, an event or a block to save is left."""
        host = self.pool.host
        return bool(self._requests or self._flights or self._events or (host is not None and host.has_work))

    @property
    def num_swaps_under_way(self) -> int:
        """Swaps that are not known to be done; they hold blocks."""
        return 0 if self.pool.host is None else self.pool.host.num_under_way

    def submit(self, submit: Submit) -> None:
        """Queue a request; raises `RequestRefused` for one that can never run."""
        prompt, params = submit.prompt_token_ids, submit.params
        refuse_impossible(self.config, self._num_cache_tokens, prompt, params, self._grammars is not None)
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
        if params.grammar is None or request.scores_only:
            self._waiting.push(request.samples[0])
        else:
            assert self._grammars is not None, "refuse_impossible let a grammar through"
            self._compiling.push(request, self._grammars.compile(params.grammar))

    def abort(self, abort: Abort) -> None:
        """End a request, or one sample of it, now; unknown and finished ones are ignored."""
        self._after_launch()
        request = self._requests.get(abort.request_id)
        if request is None:
            return
        for sample in request.unfinished:
            if abort.index in (None, sample.index):
                if any(sample in flight.samples for flight in self._flights):
                    self._counters.aborts_in_flight_total += 1
                self._end(sample, "abort")

    def plan(self) -> StepPlan | None:
        """The next step, which must be launched.

        None: commit what is in flight, or with nothing in flight settle the swaps under way and wait for grammars, then
        ask again.
        """
        self._after_launch()
        if self._compiling.entries:
            self._take_compiled()
        if self.pool.host is not None:
            self.pool.host.save()
        if self.pool.num_free < len(self._running.decoding) and not self._make_room():
            return None
        draft = Draft()
        self._plan_decodes(draft)
        self._plan_prefill(draft)
        flight = draft.finish(self._counters.steps_total, self.pool.host)
        if flight is None:
            is_waiting = self._flights or self.num_swaps_under_way or self._compiling.entries
            assert is_waiting or not self._num_samples, "Stuck: nothing in flight, nothing to plan, work left"
            return None
        self._flights.append(flight)
        self._counters.steps_total += 1
        self._counters.max_in_flight_seen = max(self._counters.max_in_flight_seen, len(self._flights))
        return flight.plan

    def commit(self, plan: StepPlan, result: StepResult) -> None:
        """Take in what `plan`, the oldest in flight, produced; `take_events` then tells of it."""
        self._after_launch()
        flight = self._flights.popleft()
        assert flight.plan is plan, f"Commit order: step {plan.step} is committed before step {flight.plan.step}"
        if self.pool.host is not None:
            self.pool.host.finish(result.swaps_done)
        tokens, logprobs, scores, errors = result.tokens, result.logprobs, result.prompt_logprobs, result.errors
        assert len(tokens) == len(logprobs) == flight.num_draws, (
            f"I6: step {plan.step} returned {len(tokens)} tokens for {flight.num_draws} sampling rows"
        )
        drawn = iter(zip(tokens, logprobs))
        for (slot, start, count, draws), sample in zip(plan.rows, flight.samples):
            if draws:
                token, logprob = next(drawn)
            if sample.finished:
                continue
            if errors and slot in errors:
                self._fail(sample.request, errors[slot], result.error_codes.get(slot))
                continue
            if scores and sample.scores is not None:
                sample.scores += scores.get(slot, ())
            if draws:
                self._append(sample, token, logprob, start + count)
            elif sample.request.scores_only and start + count == len(sample.token_ids):
                self._end(sample, "length")

    def wait_for_grammars(self, timeout_s: float) -> None:
        """Return when a grammar is ready, at once if none is waited for, or when the time is up."""
        self._compiling.wait(timeout_s)

    def take_events(self) -> list[TokenEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes, for example because the weights changed."""
        assert not self._flights and not self.num_swaps_under_way, "I9: the prefix cache is reset with steps in flight"
        self._after_launch()
        self.pool.reset()

    def stats(self) -> EngineStats:
        """Counters now."""
        return self._counters.snapshot(self.pool, self._admission, len(self._running), self._num_samples)

    def _take_compiled(self) -> None:
        for request, matcher in self._compiling.take():
            if isinstance(matcher, str):
                self._fail(request, matcher, "grammar_failed")
            elif (first := request.compiled(matcher)) is not None:
                self._waiting.push(first)

    def _after_launch(self) -> None:
        # Only what has been launched may be shared: a plan's own rows must not read what it writes.
        for sample in self._just_planned:
            request = sample.request
            if self.config.enable_prefix_caching:
                sample.table.seal(sample.token_ids, sample.computed)
            if sample.computed >= request.num_prompt_tokens:
                if not request.prompt_counted:
                    request.prompt_counted = True
                    self._counters.prompt_tokens_total += request.num_prompt_tokens
                for sibling in request.share_prompt(sample.table):
                    self._waiting.push(sibling)
        self._just_planned.clear()

    def _plan_decodes(self, draft: Draft) -> None:
        rows, new_blocks = draft.decode_rows, draft.new_blocks
        block_size = self._block_size
        decoding = self._running.decoding
        ready = [sample for sample in decoding.values() if sample.matcher is None or not sample.awaits_token]
        draft.decode_samples += ready
        exhausted = []
        for sample in ready:
            slot, start = sample.slot, sample.computed
            if sample.matcher is not None:
                draft.constrain(sample)
            rows.append(Row(slot, start, 1, 1))
            if start % block_size == 0 and start == sample.table.num_tokens:
                new_blocks.append(NewBlocks(slot, start // block_size, sample.table.grow(start + 1)))
            sample.computed = start + 1
            if start + 1 == sample.limit:
                exhausted.append(slot)
        for slot in exhausted:
            del decoding[slot]

    def _plan_prefill(self, draft: Draft) -> None:
        room = self.config.max_num_batched_tokens - len(draft.decode_rows)
        unplanned = deque(self._running.prefilling)
        arriving: list[Sample] = []
        may_admit = True
        while room > 0:
            head = self._waiting.head() if may_admit and not self._running.is_full else None
            if head is not None and (not unplanned or head < unplanned[0]):
                may_admit = self._admit(head, draft)
                if not may_admit:
                    continue
                sample = head
            elif unplanned:
                sample = unplanned.popleft()
            else:
                break
            if self.pool.host is not None and sample.table.arrival > self.pool.host.num_done:
                arriving.append(sample)
                continue
            room = self.chunks.room(room, sample.computed, draft.chunks, len(draft.decode_rows))
            room -= self._plan_chunk(sample, room, draft)
        if not draft.decode_rows and not draft.chunk_rows and not self._flights:
            for sample in arriving:
                room = self.chunks.room(room, sample.computed, draft.chunks, 0)
                room -= self._plan_chunk(sample, room, draft)

    def _plan_chunk(self, sample: Sample, room: int, draft: Draft) -> int:
        start, known = sample.computed, len(sample.token_ids)
        count = min(known - start, room)
        if count == 0:  # admitted, but this step's time is used up
            return 0
        if not sample.entered:
            draft.enter(sample)
        sample.computed = start + count
        is_last = sample.computed == known
        row = Row(sample.slot, start, count, int(is_last and not sample.request.scores_only))
        draft.add_chunk(sample, row)
        if is_last:
            self._running.finish_prefill(sample)
        if row.samples:
            draft.constrain(sample)
        self._just_planned.append(sample)
        self._counters.prefill_chunks_total += 1
        return count

    def _admit(self, sample: Sample, draft: Draft) -> bool:
        admitted = self._admission.admit(sample, len(self._running), draft.copies)
        if not admitted and not len(self._running) and self._drop_prompt_tables():
            admitted = self._admission.admit(sample, 0, draft.copies)
        if admitted:
            self._waiting.pop()
            self._running.enter(sample)
            if sample.admitted_s is None:
                sample.admitted_s = perf_counter()
            self._settle(sample)
        return admitted

    def _make_room(self) -> bool:
        # True when every decoding sample can have its next block; False when steps must be committed, or swaps settled,
        # before preempting.
        while True:
            needed = sum(sample.computed == sample.table.num_tokens for sample in self._running.decoding.values())
            if needed <= self.pool.num_free:
                return True
            if self._drop_prompt_tables():
                continue
            if self._flights or self.num_swaps_under_way:
                return False
            self._preempt(self._running.last())

    def _preempt(self, sample: Sample) -> None:
        assert not self._flights, "I9: a preemption with steps in flight"
        self._running.leave(sample)
        sample.table.release()
        sample.computed = 0
        sample.entered = False
        if sample.scores is not None:
            sample.scores = [None]
        self._waiting.push(sample)
        self._counters.preemptions_total += 1

    def _drop_prompt_tables(self) -> bool:
        requests = [request for request in self._requests.values() if request.prompt_table is not None]
        for request in requests:
            request.drop_prompt_table()
        return bool(requests)

    def _append(self, sample: Sample, token: int, logprob: TokenLogprobs | None, end: int) -> None:
        request, token_ids = sample.request, sample.token_ids
        assert end == len(token_ids), f"I10: a token for position {end} of {len(token_ids)} known"
        token_ids.append(token)
        self._counters.generation_tokens_total += 1
        if end % self._block_size == 0 and self.config.enable_prefix_caching:
            sample.table.seal(token_ids, end)
        reason: FinishReason | None = None
        if token in request.stop_ids and end + 1 - request.num_prompt_tokens >= request.params.min_tokens:
            reason = "stop"
        elif sample.matcher is not None:
            try:
                sample.matcher.accept(token)
            except GrammarFailed as error:
                self._fail(request, str(error), "grammar_failed")
                return
            reason = "stop" if sample.matcher.is_finished else None
        if reason is None and end == sample.limit:
            reason = "length"
        event = TokenEvent(
            request.request_id,
            sample.index,
            (token,),
            None if logprob is None else (logprob,),
            reason,
            token if reason == "stop" and (token in request.stop_ids or token in self.config.eos_token_ids) else None,
            request.num_cached_tokens,
        )
        if end == request.num_prompt_tokens:
            event.start_times = sample.start_times
        if sample.scores is not None:
            event.prompt_logprobs = sample.take_scores()
        self._events.append(event)
        if reason is not None:
            self._retire(sample)

    def _end(
        self, sample: Sample, reason: FinishReason, error: str | None = None, error_code: str | None = None
    ) -> None:
        request_id = sample.request.request_id
        event = TokenEvent(request_id, sample.index, finish_reason=reason, error=error, error_code=error_code)
        event.num_cached_tokens = sample.request.num_cached_tokens
        if reason == "length":
            event.prompt_logprobs = sample.take_scores()
        self._events.append(event)
        self._retire(sample)

    def _fail(self, request: Request, error: str, error_code: str | None) -> None:
        for sample in request.unfinished:
            sample.table.forget()
            self._end(sample, "error", error, error_code)

    def _retire(self, sample: Sample) -> None:
        request = sample.request
        assert not sample.finished, "I13: a second final event"
        sample.finished = True
        if sample.slot != NO_SLOT:
            self._running.leave(sample)
        sample.table.release()
        self._num_samples -= 1
        request.num_unfinished -= 1
        self._settle(sample)
        if request.num_unfinished == 0:
            del self._requests[request.request_id]
            if request.is_compiling:
                self._compiling.drop(request)
            # Samples know their request: a request that kept them would stay until the collector looks at old objects,
            # and with it its tokens.
            request.samples.clear()

    def _settle(self, sample: Sample) -> None:
        successor = sample.request.settle(sample)
        if successor is not None:
            self._waiting.push(successor)
