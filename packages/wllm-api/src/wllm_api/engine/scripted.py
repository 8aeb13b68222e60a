"""An engine that needs no model: scripted answers, served with the timing and bookkeeping of a real one.

For tests of servers and clients, and for demonstrations. Everything is a function of the prompt, the parameters and the
options, so answers can be compared. It honours limits, end tokens, stop ids, `n`, seeds, biases, log-probabilities,
priorities, cache salts and aborts; it does not model memory pressure or speed, and its script is its answer under any
grammar.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wllm_api.engine.scripted_model import BLOCK_SIZE, CHAT_TEMPLATE, VOCAB_SIZE, build_tokenizer, describe
from wllm_sched.errors import RequestRefused
from wllm_sched.messages import Abort, EngineStats, FinishReason, ModelInfo, StartTimes, Submit, TokenEvent
from wllm_sched.plan import TokenLogprobs

_WORDS = "the and to of is in it you that was for with".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOptions:
    """The script, as plain values that can be pickled.

    `reply` is every answer; None makes one up from the prompt (greedy) or the seed. The engine waits `load_s` seconds
    before it is ready and `step_s` in each step, gives each sample `tokens_per_step` tokens a step, runs at most
    `max_num_seqs` samples at once, raises in step number `crash_after`, and raises `load_error` while it loads. Its
    tokenizer knows `more_special_tokens` too, and with `adds_begin_token` it begins texts with "<|im_start|>".
    """

    reply: str | None = None
    tokens_per_step: int = 1
    step_s: float = 0.0
    load_s: float = 0.0
    load_error: str | None = None
    crash_after: int | None = None
    max_num_seqs: int = 64
    max_model_len: int = 4096
    num_blocks: int = 4096
    chat_template: str | None = CHAT_TEMPLATE
    infinite_logprobs: bool = False
    more_special_tokens: tuple[str, ...] = ()
    adds_begin_token: bool = False


@dataclass(slots=True)
class _Sample:
    request: Submit
    index: int
    seed: int
    script: list[int]
    num_cached_tokens: int
    output: list[int] = field(default_factory=list)
    started: bool = False

    @property
    def num_blocks(self) -> int:
        return -(-(len(self.request.prompt_token_ids) + len(self.output)) // BLOCK_SIZE)


def create_scripted_engine(options: Mapping[str, Any]) -> ScriptedEngine:
    """The factory for `EngineProcess`: "wllm_api.engine.scripted:create_scripted_engine"; see `ScriptedOptions`."""
    return ScriptedEngine(ScriptedOptions(**options))


class ScriptedEngine:
    """A `ServedEngine` that follows its options."""

    def __init__(self, options: ScriptedOptions) -> None:
        time.sleep(options.load_s)
        if options.load_error is not None:
            raise RuntimeError(options.load_error)
        self._options = options
        self._tokenizer = build_tokenizer(options.more_special_tokens, begin=options.adds_begin_token)
        self._info = describe(
            self._tokenizer,
            max_model_len=options.max_model_len,
            num_blocks=options.num_blocks,
            chat_template=options.chat_template,
        )
        self._waiting: deque[_Sample] = deque()
        self._running: list[_Sample] = []
        self._aborted: list[_Sample] = []
        self._seen_prefixes: set[int] = set()
        self._unseeded = random.Random()
        self._counters = dict.fromkeys(
            (
                *("steps_total", "prompt_tokens_total", "generation_tokens_total", "prefill_chunks_total"),
                *("prefix_cache_queries_total", "prefix_cache_hits_total", "aborts_in_flight_total"),
            ),
            0,
        )

    @property
    def model_info(self) -> ModelInfo:
        """Facts about the pretended model."""
        return self._info

    def check_device(self) -> None:
        """Nothing can be lost."""

    def submit(self, request: Submit) -> None:
        """Queue a request; raises `RequestRefused` for one that is too long or has unknown ids."""
        prompt, params = request.prompt_token_ids, request.params
        limit = self._options.max_model_len
        if not prompt:
            raise RequestRefused("The prompt is empty. Send at least one token.", parameter="prompt")
        if len(prompt) + (params.max_tokens or 0) > limit:
            raise RequestRefused(
                f"This model's maximum context length is {limit} tokens. However, the prompt has {len(prompt)} tokens "
                f"and {params.max_tokens or 0} more are asked for. Shorten the prompt or lower max_tokens.",
                parameter="prompt",
                code="context_length_exceeded",
            )
        unknown = [token_id for token_id in prompt if not 0 <= token_id < VOCAB_SIZE]
        if unknown:
            raise RequestRefused(
                f"Token id {unknown[0]} is not in the vocabulary of {VOCAB_SIZE}. Send ids below that.",
                parameter="prompt",
            )
        cached = self._cached(prompt, params.cache_salt)
        for index in range(params.n):
            base = self._unseeded.getrandbits(63) if params.seed is None else params.seed
            sample = _Sample(request, index, base * 1_000_003 + index, [], cached)
            sample.script = self._script(sample)
            self._waiting.append(sample)

    def abort(self, abort: Abort) -> None:
        """End a request or one sample of it with the next step."""
        for samples in (self._waiting, self._running):
            for sample in [*samples]:
                if sample.request.request_id == abort.request_id and abort.index in (None, sample.index):
                    samples.remove(sample)
                    self._aborted.append(sample)
                    self._counters["aborts_in_flight_total"] += 1

    def has_work(self) -> bool:
        """Whether any sample waits, runs, or is to get its last event."""
        return bool(self._waiting or self._running or self._aborted)

    def step(self) -> list[TokenEvent]:
        """Some tokens for every running sample."""
        time.sleep(self._options.step_s)
        self._counters["steps_total"] += 1
        if self._counters["steps_total"] == self._options.crash_after:
            raise RuntimeError(f"scripted crash in step {self._options.crash_after}")
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            first = min(self._waiting, key=lambda sample: sample.request.params.priority)
            self._waiting.remove(first)
            self._running.append(first)
        events = [
            TokenEvent(sample.request.request_id, sample.index, finish_reason="abort") for sample in self._aborted
        ]
        self._aborted.clear()
        events += [self._advance(sample) for sample in self._running]
        ended = {(event.request_id, event.index) for event in events if event.finish_reason is not None}
        self._running = [sample for sample in self._running if (sample.request.request_id, sample.index) not in ended]
        return events

    def stats(self) -> EngineStats:
        """Counters now; a sample counts as a request."""
        used = sum(sample.num_blocks for sample in self._running)
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_blocks=self._options.num_blocks,
            num_free_blocks=max(self._options.num_blocks - used, 0),
            max_in_flight_seen=1,
            **self._counters,
        )

    def close(self) -> None:
        """Nothing to release."""

    def _cached(self, prompt: Sequence[int], salt: str) -> int:
        # Whole blocks of the prompt that an earlier prompt began with; at least one token is always computed.
        hits, chain = 0, hash(salt)
        for end in range(BLOCK_SIZE, len(prompt) + 1, BLOCK_SIZE):
            chain = hash((chain, *prompt[end - BLOCK_SIZE : end]))
            hits += chain in self._seen_prefixes and end < len(prompt)
            self._seen_prefixes.add(chain)
        self._counters["prefix_cache_queries_total"] += len(prompt)
        self._counters["prefix_cache_hits_total"] += hits * BLOCK_SIZE
        return hits * BLOCK_SIZE

    def _script(self, sample: _Sample) -> list[int]:
        if self._options.reply is not None:
            text = self._options.reply
        elif sample.request.params.temperature > 0:
            drawn = random.Random(sample.seed)
            text = " ".join(drawn.choice(_WORDS) for _ in range(drawn.randint(6, 12)))
        else:
            prompt = sample.request.prompt_token_ids
            text = f" I have read {len(prompt)} tokens, and their ids add up to {sum(prompt)}."
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _advance(self, sample: _Sample) -> TokenEvent:
        params, prompt = sample.request.params, sample.request.prompt_token_ids
        room = self._options.max_model_len - len(prompt)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        first, sample.started = not sample.started, True
        if first:
            self._counters["prompt_tokens_total"] += len(prompt)
            self._counters["prefill_chunks_total"] += 1
        token_ids: list[int] = []
        reason: FinishReason | None = "length" if limit == 0 else None
        stop_token_id: int | None = None
        while reason is None and len(token_ids) < self._options.tokens_per_step:
            token_id = self._next(sample)
            token_ids.append(token_id)
            sample.output.append(token_id)
            if len(sample.output) > params.min_tokens and self._ends(sample, token_id):
                reason, stop_token_id = "stop", token_id
            elif len(sample.output) >= limit:
                reason = "length"
        self._counters["generation_tokens_total"] += len(token_ids)
        wanted = params.logprobs
        prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        if first and sample.index == 0 and params.prompt_logprobs is not None:
            top = params.prompt_logprobs
            prompt_logprobs = (None, *(self._logprobs(token_id, top) for token_id in prompt[1:]))
        return TokenEvent(
            sample.request.request_id,
            sample.index,
            tuple(token_ids),
            logprobs=None if wanted is None else tuple(self._logprobs(token_id, wanted) for token_id in token_ids),
            finish_reason=reason,
            stop_token_id=stop_token_id,
            num_cached_tokens=sample.num_cached_tokens,
            prompt_logprobs=prompt_logprobs,
            # Nothing waits for a slot here, and there is no prefill.
            start_times=StartTimes(0.0, 0.0) if first else None,
        )

    def _next(self, sample: _Sample) -> int:
        # The script, then the end token; a script that must go on begins again.
        params, position = sample.request.params, len(sample.output)
        if position < len(sample.script):
            wanted = sample.script[position]
        elif sample.script and (params.ignore_eos or position < params.min_tokens):
            wanted = sample.script[position % len(sample.script)]
        else:
            wanted = self._info.eos_token_ids[0]
        if params.allowed_token_ids is not None and wanted not in params.allowed_token_ids:
            wanted = params.allowed_token_ids[position % len(params.allowed_token_ids)]
        scores = {wanted: 10.0}
        for token_id, bias in (params.logit_bias or {}).items():
            scores[token_id] = scores.get(token_id, 0.0) + bias
        best = max(scores, key=lambda token_id: scores[token_id])
        return best if scores[best] > 0 else self._encode("a")[0]

    def _ends(self, sample: _Sample, token_id: int) -> bool:
        params = sample.request.params
        if token_id in (params.stop_token_ids or ()):
            return True
        return token_id in self._info.eos_token_ids and not params.ignore_eos

    def _logprobs(self, token_id: int, count: int) -> TokenLogprobs:
        top = [(token_id, -0.25), *(((token_id + n) % VOCAB_SIZE, -2.0 - n) for n in range(1, count))]
        if self._options.infinite_logprobs and count > 1:
            top[-1] = (top[-1][0], float("-inf"))
        return TokenLogprobs(token_id, -0.25, 1, tuple(top[:count]))
