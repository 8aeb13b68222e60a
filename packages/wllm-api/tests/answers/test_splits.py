"""However the engine's events are cut, a stream of the newer APIs is the whole answer."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.message import MessageText
from wllm_api.answers.messages import MessageAnswer
from wllm_api.answers.responses import ResponseAnswer
from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.generation import Generation
from wllm_api.schemas.responses import ResponsesRequest
from wllm_api.text import OutputText, TextDelta, Tokenizer
from wllm_api.tools import AnswerParser, plain
from wllm_sched.messages import TokenEvent
from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams

ROUNDS = 150
PROMPT = [5, 6, 7]


class CutGeneration:
    """Stands in for a `Generation`: one answer of `ids`, in events cut at `cuts`."""

    num_prompt_tokens = len(PROMPT)
    num_cached_tokens = 1

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, ids: list[int], cuts: list[int]) -> None:
        self._output = OutputText(tokenizer, PROMPT, params)
        edges = [0, *cuts, len(ids)]
        self._events = [
            TokenEvent(
                1,
                0,
                tuple(ids[start:end]),
                logprobs=tuple(TokenLogprobs(token_id, -0.5, 1, ()) for token_id in ids[start:end]),
                finish_reason="length" if number == len(cuts) else None,
            )
            for number, (start, end) in enumerate(itertools.pairwise(edges))
        ]

    @property
    def num_completion_tokens(self) -> int:
        return self._output.num_tokens

    async def deltas(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        for event in self._events:
            if not self._output.finished:
                yield 0, self._output.push(event)


class Case:
    """One random answer with random stop strings."""

    def __init__(self, rng: random.Random, tokenizer: Tokenizer) -> None:
        self._rng = rng
        self.tokenizer = tokenizer
        self.ids = [rng.randrange(3, tokenizer.vocab_size) for _ in range(rng.randint(1, 30))]
        text = tokenizer.decode(self.ids)
        where = rng.randrange(len(text) + 1)
        stops = [stop for stop in (text[where : where + rng.randint(1, 4)], "zq") if stop]
        self.params = SamplingParams(stop=stops if rng.random() < 0.6 else (), max_tokens=99, logprobs=0)

    def generation(self, *, cut: bool) -> Generation:
        cuts = sorted(self._rng.choices(range(len(self.ids) + 1), k=self._rng.randint(1, 12))) if cut else []
        return cast(Generation, CutGeneration(self.tokenizer, self.params, self.ids, cuts))


@pytest.fixture
def cases() -> list[Case]:
    rng = random.Random(20_26)
    tokenizer = Tokenizer.from_json(build_tokenizer().to_str())
    return [Case(rng, tokenizer) for _ in range(ROUNDS)]


def collected(stream: AsyncGenerator[bytes, None]) -> list[dict[str, Any]]:
    async def read() -> list[bytes]:
        return [data async for data in stream]

    events = []
    for data in asyncio.run(read()):
        name, line, *rest = data.decode().split("\n")
        assert rest == ["", ""]
        events.append(json.loads(line.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def plain_text() -> MessageText:
    return MessageText(
        AnswerParser(plain, exact=True), show_reasoning=True, max_calls=None, short_ids=False, named=False
    )


def message(generation: Generation) -> MessageAnswer:
    return MessageAnswer(generation, {}, plain_text(), answer_id="msg_1", model_name="m", fills_context=False)


def test_messages(cases: list[Case]) -> None:
    reasons = set()
    for case in cases:
        whole = asyncio.run(message(case.generation(cut=False)).whole())
        start, *middle, end, _ = collected(message(case.generation(cut=True)).stream())
        text = "".join(event["delta"]["text"] for event in middle if event["type"] == "content_block_delta")
        assert {**start["message"], **end["delta"], "usage": end["usage"]} == {**whole, "content": []}
        assert whole["content"] == [{"type": "text", "text": text}]
        reasons.add(whole["stop_reason"])
    assert reasons == {"max_tokens", "stop_sequence"}


def response(case: Case, generation: Generation) -> ResponseAnswer:
    body = ResponsesRequest.model_validate({"input": "Hi", "include": ["message.output_text.logprobs"]})
    names = LogprobsFormat(case.tokenizer, as_ids=False)
    return ResponseAnswer(body, generation, case.params, plain_text(), unique="1", model_name="m", logprobs=names)


def test_responses(cases: list[Case]) -> None:
    statuses = set()
    for case in cases:
        whole = asyncio.run(response(case, case.generation(cut=False)).whole())
        *events, end = collected(response(case, case.generation(cut=True)).stream())
        part = cast(Any, whole)["output"][0]["content"][0]
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(event["delta"] for event in deltas) == part["text"]
        assert [row for event in deltas for row in event["logprobs"]] == part["logprobs"]
        assert [event["sequence_number"] for event in (*events, end)] == list(range(len(events) + 1))
        for body in (whole, end["response"]):
            body["created_at"] = body["completed_at"] = None
        assert end["response"] == whole
        statuses.add(whole["status"])
    assert statuses == {"completed", "incomplete"}
