"""However the engine's events are cut, a stream of the newer APIs or of Ollama's is the whole answer."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from wllm_api.answers.base import Gained
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.message import MessageText
from wllm_api.answers.messages import MessageAnswer
from wllm_api.answers.ollama import Clock, OllamaAnswer
from wllm_api.answers.responses import ResponseAnswer
from wllm_api.answers.segments import UNREADABLE, Segment, Segments
from wllm_api.generation import Generation, Job
from wllm_api.schemas.responses import ResponsesRequest
from wllm_api.testing import sse_events
from wllm_api.tools import AnswerParser, answer_format, plain
from wllm_sched.sampling import SamplingParams

ROUNDS = 120
PARTS = (
    "<think>", "</think>", "\n", " ", "Hm, é🫠.", "It is", " so", "<", "<tool_call>", "</tool_call>", "{", '"',
    '<tool_call>\n{"name": "look", "arguments": {"at": "Köln 🫠", "n": [1, {}]}}\n</tool_call>',
    '<tool_call>{"name": "look", "arguments": {"at": "<\\"', '<tool_call>{"name": "look"}</tool_call>\n',
    '<tool_call>{"name": "look", "arguments": [1, 2]}</tool_call>',
)  # fmt: skip
PROMPT = [5, 6, 7]


class Case:
    """A random answer, and how it is asked for."""

    def __init__(self, bench: Any, rng: random.Random) -> None:
        self._bench = bench
        text = "".join(rng.choices(PARTS, k=rng.randint(0, 12)))
        written = [*bench.model.tokenizer.encode(text, add_special_tokens=False), *([2] if rng.random() < 0.7 else [])]
        # Random tokens are broken characters too.
        self.ids = bench.text_ids() if rng.random() < 0.3 else written or [5]
        stops = bench.stops_in(bench.model.tokenizer.decode(self.ids)) if rng.random() < 0.3 else []
        self.params = SamplingParams(stop=stops, max_tokens=len(self.ids), logprobs=rng.choice([None, 0, 2]))
        self._shows = rng.random() < 0.7
        self._max_calls = rng.choice([None, 1])
        self._tools = {"look": {}} if rng.random() < 0.8 else None
        self._prompt = rng.choice(["", "<think>\n"])

    def message(self) -> MessageText:
        marks = answer_format("<tool_call></tool_call><think></think>")
        return MessageText(
            marks.parser(self._prompt, tools=self._tools, special=frozenset())(),
            show_reasoning=self._shows, max_calls=self._max_calls, short_ids=True, named=False,
        )  # fmt: skip

    def generation(self, *, cut: bool) -> Generation:
        self._bench.engine.replay([self.ids], cut=cut)
        return Generation(self._bench.serving, self._bench.model, [Job(PROMPT, self.params)])

    def logprobs(self) -> LogprobsFormat:
        return LogprobsFormat(self._bench.model.tokenizer, as_ids=False)


@pytest.fixture
def cases(bench: Any) -> list[Case]:
    rng = random.Random(20_26)
    return [Case(bench, rng) for _ in range(ROUNDS)]


def run(answer: Any) -> Any:
    return asyncio.run(answer.whole())


def lines(answer: Any) -> list[str]:
    async def read() -> list[bytes]:
        return [data async for data in answer.stream()]

    return b"".join(asyncio.run(read())).decode().removesuffix("\n").split("\n")


def events(answer: Any) -> list[Any]:
    return list(sse_events(lines(answer)))


def without_ids(value: Any) -> Any:
    """`value` less what differs between equal answers."""
    if isinstance(value, list):
        return [without_ids(one) for one in value]
    if isinstance(value, dict):
        dropped = ("id", "call_id", "created_at", "completed_at")
        return {name: without_ids(one) for name, one in value.items() if name not in dropped}
    return value


def test_messages(cases: list[Case]) -> None:
    kinds = set()
    for case in cases:

        def answer(*, cut: bool, case: Case = case) -> MessageAnswer:
            generation = case.generation(cut=cut)
            return MessageAnswer(generation, {}, case.message(), answer_id="m", model_name="m", fills_context=False)

        whole = run(answer(cut=False))
        start, *middle, end, _ = events(answer(cut=True))
        blocks: list[Any] = []
        for event in middle:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                kind = event["delta"].pop("type")
                ((name, piece),) = event["delta"].items()
                blocks[-1]["json" if kind == "input_json_delta" else name] += piece
        for block in blocks:
            text = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = Segment("call", text=text).arguments()
        assert without_ids(blocks) == without_ids(whole["content"])
        assert {**start["message"], **end["delta"], "usage": end["usage"]} == {**whole, "content": []}
        kinds |= {block["type"] for block in blocks} | {whole["stop_reason"]}
    assert kinds == {"text", "thinking", "tool_use", "end_turn", "max_tokens", "stop_sequence"}


def test_responses(cases: list[Case]) -> None:
    body = ResponsesRequest.model_validate({"input": "Hi"})
    kinds = set()
    for case in cases:

        def answer(*, cut: bool, case: Case = case) -> ResponseAnswer:
            return ResponseAnswer(
                body, case.generation(cut=cut), case.params, case.message(), unique="1", model_name="m",
                logprobs=case.logprobs(),
            )  # fmt: skip

        whole = run(answer(cut=False))
        stream = events(answer(cut=True))
        assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
        assert without_ids(stream[-1]["response"]) == without_ids(whole)
        for number, item in enumerate(stream[-1]["response"]["output"]):
            mine = [event for event in stream if event.get("output_index") == number]
            assert mine[-1]["item"] == item
            text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            deltas = [event for event in mine if event["type"].endswith(".delta")]
            assert "".join(event["delta"] for event in deltas) == text
            if item["type"] == "message":
                rows = [row for event in deltas for row in event["logprobs"]]
                assert rows == item["content"][0]["logprobs"]
                assert case.params.logprobs is not None or not rows
                kinds |= {"logprobs"} if rows else set()
        kinds |= {item["type"] for item in whole["output"]} | {item["status"] for item in whole["output"]}
        assert 0 <= whole["usage"]["output_tokens_details"]["reasoning_tokens"] <= whole["usage"]["output_tokens"]
    assert kinds == {"message", "reasoning", "function_call", "completed", "incomplete", "logprobs"}


@pytest.mark.parametrize("chat", [True, False])
def test_ollama(cases: list[Case], chat: bool) -> None:
    for case in cases:

        def answer(*, cut: bool, case: Case = case) -> OllamaAnswer:
            return OllamaAnswer(
                case.generation(cut=cut), case.message(), model_name="m", chat=chat, clock=Clock(0, 5),
                logprobs=None if case.params.logprobs is None else case.logprobs(),
            )  # fmt: skip

        whole = run(answer(cut=False))
        *parts, end = map(json.loads, lines(answer(cut=True)))
        assert [part["done"] for part in (*parts, end)] == [False] * len(parts) + [True]
        shown = [part["message"] if chat else part for part in (*parts, end)]
        name = "content" if chat else "response"
        made = whole["message"] if chat else whole
        assert "".join(one[name] for one in shown) == made[name]
        assert "".join(one.get("thinking", "") for one in shown) == made.get("thinking", "")
        calls = [call for one in shown for call in one.get("tool_calls", [])]
        assert without_ids(calls) == without_ids(made.get("tool_calls", []))
        assert [row for part in parts for row in part.get("logprobs", [])] == whole.get("logprobs", [])
        counts = ("done_reason", "eval_count", "prompt_eval_count")
        assert [end[name] for name in counts] == [whole[name] for name in counts]


@pytest.mark.parametrize(("text", "arguments"), [
    ("", {}), ("{}", {}), ('{"a": 1}', {"a": 1}), ('{"a": "x', {}), ('{"a": [1, {"b"', {"a": [1, {}]}),
    (" \n", {}), ("[1]", {UNREADABLE: "[1]"}), ("nonsense", {UNREADABLE: "nonsense"}), ('"x"', {UNREADABLE: '"x"'}),
    ('{"big": 123456789012345678901234567890}', {"big": 123456789012345678901234567890}),
])  # fmt: skip
def test_arguments(text: str, arguments: dict[str, object]) -> None:
    assert Segment("call", text=text).arguments() == arguments


def test_answer_of_nothing_has_one_segment() -> None:
    def message(make: Callable[[], AnswerParser]) -> MessageText:
        return MessageText(make(), show_reasoning=False, max_calls=0, short_ids=False, named=False)

    for text, parser in (
        ("", lambda: AnswerParser(plain, exact=True)),
        ("Hm.", answer_format("<think></think>").parser("<think>", tools=None, special=frozenset())),
    ):
        segments = Segments(message(parser))
        steps = list(segments.add(Gained(text=text, offsets=[0], token_ids=[7], finish_reason="stop")))
        assert [(step.begins, step.ends) for step in steps] == [(True, False), (False, True)]
        assert [(one.kind, one.text) for one in segments.all] == [("content", "")]
