"""An engine whose answers are made up beforehand and come in pieces cut anywhere, under the real rest of the server."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from wllm_api.app import create_app
from wllm_api.engine.scripted_model import build_tokenizer, describe
from wllm_api.errors import EngineState
from wllm_api.hosting import HostedModel, LoadedModel
from wllm_api.serving import Serving
from wllm_api.settings import Parsers
from wllm_sched.messages import EngineStats, ModelInfo, StartTimes, TokenEvent
from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams

END = 2  # "<|im_end|>"


class Events:
    """The events of one request; what was in flight still comes after an abort."""

    def __init__(self, events: list[TokenEvent], rng: random.Random) -> None:
        self._events = events
        self._rng = rng
        self._aborted: dict[int, int] = {}

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        late: dict[int, int] = {}
        ended = set()
        for event in self._events:
            index = event.index
            if index in ended:
                continue
            if index in self._aborted:
                late[index] = late.get(index, 0) + 1
                if late[index] > self._aborted[index] or event.finish_reason is not None:
                    event = replace(event, token_ids=(), logprobs=None, finish_reason="abort", stop_token_id=None)
            if event.finish_reason is not None:
                ended.add(index)
            yield event
            if self._rng.random() < 0.1:
                await asyncio.sleep(0)

    def abort(self, index: int | None = None) -> None:
        """End a sample some events later."""
        if index is not None:
            self._aborted.setdefault(index, self._rng.randrange(3))


class CutEngine:
    """Gives the samples of all requests, one after the other, the token ids in `answers`; `cut`: in random pieces."""

    num_restarts = 0
    error = None
    stats = EngineStats()
    state: EngineState = "ready"

    def __init__(self, info: ModelInfo) -> None:
        self.info: ModelInfo | None = info
        self.answers: list[list[int]] = []
        self.cut = False
        self.rng = random.Random(2026)
        self._vocab_size = info.vocab_size

    async def start(self) -> None:
        raise NotImplementedError

    async def wait_ready(self) -> ModelInfo:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def replay(self, answers: list[list[int]], *, cut: bool) -> None:
        """Answer the coming requests with these."""
        self.answers, self.cut = [*answers], cut

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> Events:
        """The events of a request, its samples' ones mixed."""
        limit = len(self.answers[0]) if params.max_tokens is None else params.max_tokens
        lines = [self._sample(index, self.answers.pop(0), params, limit) for index in range(params.n)]
        scored = params.prompt_logprobs
        if scored is not None:
            rows = (None, *(self._row(token_id, scored) for token_id in prompt_token_ids[1:]))
            lines[0][0] = replace(lines[0][0], prompt_logprobs=rows)
        events: list[TokenEvent] = []
        while any(lines):
            line = self.rng.choice([line for line in lines if line]) if self.cut else next(filter(None, lines))
            events.append(line.pop(0))
        return Events(events, self.rng)

    def _sample(self, index: int, ids: list[int], params: SamplingParams, limit: int) -> list[TokenEvent]:
        ended = not params.ignore_eos and END in ids[:limit]
        ids = ids[: ids.index(END) + 1] if ended else ids[:limit]
        cuts = sorted(self.rng.choices(range(len(ids) + 1), k=self.rng.randint(1, 12))) if self.cut else []
        if ended and cuts and cuts[-1] == len(ids):
            cuts = [one for one in cuts if one < len(ids)]  # the end token is the last event's
        logprobs = params.logprobs
        events = [
            TokenEvent(
                1,
                index,
                tuple(ids[start:end]),
                logprobs=None if logprobs is None else tuple(self._row(one, logprobs) for one in ids[start:end]),
                num_cached_tokens=1,
                start_times=StartTimes(0.0, 0.0) if start == 0 else None,
            )
            for start, end in itertools.pairwise([0, *cuts, len(ids)])
        ]
        last = replace(events[-1], finish_reason="stop" if ended else "length", stop_token_id=END if ended else None)
        return [*events[:-1], last]

    def _row(self, token_id: int, count: int) -> TokenLogprobs:
        value = -((token_id * 37) % 101) / 16
        top = tuple(((token_id + n) % self._vocab_size, value - n) for n in range(1, count + 1))
        return TokenLogprobs(token_id, value, 2, top)


class Bench:
    """The parts of a server around such an engine."""

    def __init__(self) -> None:
        info = describe(build_tokenizer(), max_model_len=4096, num_blocks=64, chat_template=None)
        self.engine = CutEngine(info)
        self.serving: Serving = create_app([HostedModel(self.engine, ["m"])]).state.serving
        self.model = LoadedModel(info, Parsers(), engine=self.engine, metrics=self.serving.metrics.of("m"))
        self.rng = random.Random(20_26)

    def text_ids(self, most: int = 30) -> list[int]:
        """A random answer, more often than not one that ends by itself."""
        ids = [self.rng.randrange(3, self.model.tokenizer.vocab_size) for _ in range(self.rng.randint(0, most))]
        return [*ids, END] if self.rng.random() < 0.6 else [*ids, 5]

    def stops_in(self, text: str) -> list[str]:
        """Stop strings, most of them in `text`."""
        where = self.rng.randrange(len(text) + 1)
        return [stop for stop in (text[where : where + self.rng.randint(1, 4)], "zq") if stop]


def chunks_of(answer: Any) -> list[dict[str, Any]]:
    """The chunks of an answer's stream, which ends as it should."""

    async def read() -> list[bytes]:
        return [data async for data in answer.stream()]

    *data, done = asyncio.run(read())
    assert done == b"data: [DONE]\n\n"
    return [json.loads(one.decode().removeprefix("data: ")) for one in data]


@pytest.fixture(scope="session")
def chunks() -> Any:
    """`chunks_of`."""
    return chunks_of


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A fresh one, always with the same random numbers."""
    yield Bench()
