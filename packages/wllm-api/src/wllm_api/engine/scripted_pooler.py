"""An engine of another kind that needs no model: vectors and scores that follow from the tokens.

A vector counts the tokens by their ids' last digit, so texts that share words are near each other; a score is the share
of the second text's tokens that are in the first one too.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wllm_api.engine.scripted_model import VOCAB_SIZE, build_tokenizer, describe
from wllm_sched.errors import RequestRefused
from wllm_sched.messages import Abort, EngineStats, ModelInfo, Submit, Task, TokenEvent
from wllm_sched.pooling import Pool, PooledText
from wllm_sched.refusal import refuse_impossible_texts
from wllm_sched.text_queue import QueuedText, TextQueue

VECTOR_SIZE = 10
DIMENSIONS = (4, 8)
_TOKENS_A_STEP = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolerOptions:
    """The script, as plain values that can be pickled.

    The engine waits `step_s` seconds in each step, takes at most `max_num_seqs` texts a step, and raises in step number
    `crash_after`. Its vectors may be shortened if `matryoshka`, and with `adds_begin_token` its texts begin with one.
    """

    task: Task = "embed"
    matryoshka: bool = False
    step_s: float = 0.0
    crash_after: int | None = None
    max_num_seqs: int = 64
    max_model_len: int = 4096
    adds_begin_token: bool = False


def create_scripted_pooler(options: Mapping[str, Any]) -> ScriptedPooler:
    """The factory for `EngineProcess`: "wllm_api.engine.scripted_pooler:create_scripted_pooler"."""
    return ScriptedPooler(PoolerOptions(**options))


class ScriptedPooler:
    """A `ServedEngine` and `Pooler` that follows its options."""

    def __init__(self, options: PoolerOptions) -> None:
        self._options = options
        tokenizer = build_tokenizer(begin=options.adds_begin_token)
        info = describe(tokenizer, max_model_len=options.max_model_len, num_blocks=0, chat_template=None)
        embeds = options.task == "embed"
        self._info = replace(
            info,
            task=options.task,
            vector_size=VECTOR_SIZE if embeds else 1,
            vector_dimensions=DIMENSIONS if embeds and options.matryoshka else (),
        )
        self._queue = TextQueue(options.max_num_seqs, _TOKENS_A_STEP)
        self._num_steps = self._num_tokens = 0

    @property
    def model_info(self) -> ModelInfo:
        """Facts about the pretended model."""
        return self._info

    def check_device(self) -> None:
        """Nothing can be lost."""

    def submit(self, request: Submit) -> None:
        """Refuse: raises `RequestRefused`."""
        raise RequestRefused("The scripted pooler writes no text.")

    def pool(self, request: Pool) -> None:
        """Queue a request; raises `RequestRefused` for one that can never run."""
        refuse_impossible_texts(
            request,
            vocab_size=VOCAB_SIZE,
            max_model_len=self._options.max_model_len,
            dimensions=(*self._info.vector_dimensions, self._info.vector_size),
        )
        self._queue.push(request)

    def abort(self, abort: Abort) -> None:
        """Drop what waits of a request."""
        self._queue.abort(abort)

    def has_work(self) -> bool:
        """Whether any text waits, or the event of a dropped one."""
        return self._queue.has_work

    def step(self) -> list[TokenEvent]:
        """The vectors of some texts."""
        time.sleep(self._options.step_s)
        self._num_steps += 1
        if self._num_steps == self._options.crash_after:
            raise RuntimeError(f"scripted crash in step {self._options.crash_after}")
        events = self._queue.take_aborted()
        for queued in self._queue.take():
            self._num_tokens += queued.length
            events.append(self._event(queued))
        return events

    def stats(self) -> EngineStats:
        """Counters now; a text counts as a request."""
        return EngineStats(
            num_waiting=self._queue.num_waiting, steps_total=self._num_steps, prompt_tokens_total=self._num_tokens
        )

    def close(self) -> None:
        """Nothing to release."""

    def _event(self, queued: QueuedText) -> TokenEvent:
        request = queued.request
        if self._info.task == "score":
            values = [_score(queued.text)]
        else:
            values = _vector(queued.text.token_ids)[: request.dimensions]
            if request.normalize is not False:
                length = math.hypot(*values) or 1.0
                values = [value / length for value in values]
        vector = struct.pack(f"<{len(values)}f", *values)
        return TokenEvent(request.request_id, queued.index, finish_reason="stop", vector=vector)


def _vector(token_ids: Sequence[int]) -> list[float]:
    counts = [0.0] * VECTOR_SIZE
    for token_id in token_ids:
        counts[token_id % VECTOR_SIZE] += 1.0
    return counts


def _score(text: PooledText) -> float:
    types = text.token_type_ids or [0] * len(text.token_ids)
    first = {token_id for token_id, kind in zip(text.token_ids, types, strict=True) if kind == 0}
    second = [token_id for token_id, kind in zip(text.token_ids, types, strict=True) if kind == 1]
    return sum(token_id in first for token_id in second) / max(len(second), 1)
