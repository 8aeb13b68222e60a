"""Ollama's answers, without a server: the lines of a stream make up the whole, however its text is cut."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.answers.message import MessageText
from wllm_api.answers.ollama import Clock, OllamaAnswer, timestamp
from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.generation import Generation
from wllm_api.text import TextDelta, Tokenizer
from wllm_api.tools import AnswerParser, plain
from wllm_sched.plan import TokenLogprobs


class CutGeneration:
    """Hands out prepared deltas."""

    def __init__(self, deltas: list[TextDelta]) -> None:
        self._deltas = deltas
        self.num_prompt_tokens = 7
        self.num_completion_tokens = sum(len(delta.token_ids) for delta in deltas)

    async def deltas(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        for delta in self._deltas:
            await asyncio.sleep(0)
            yield 0, delta


def cut(text: str, ids: list[int], pieces: int, rng: random.Random) -> list[TextDelta]:
    """`text` and `ids` in deltas that do not know of each other: held-back text comes later than its tokens."""
    texts = sorted(rng.choices(range(len(text) + 1), k=pieces - 1))
    tokens = sorted(rng.choices(range(len(ids) + 1), k=pieces - 1))
    deltas = []
    for number in range(pieces):
        start, end = ([0, *texts][number], [*texts, len(text)][number])
        some = tuple(ids[[0, *tokens][number] : [*tokens, len(ids)][number]])
        deltas.append(
            TextDelta(
                text=text[start:end],
                token_ids=some,
                logprobs=tuple(TokenLogprobs(one, -one / 7, 1, ((one, -one / 7),)) for one in some),
                text_offsets=(0,) * len(some),
                finish_reason="stop" if number == pieces - 1 else None,
            )
        )
    return deltas


def answer(deltas: list[TextDelta], *, chat: bool, logprobs: LogprobsFormat | None) -> OllamaAnswer:
    generation = cast("Generation", CutGeneration(deltas))
    text = MessageText(
        AnswerParser(plain, exact=True), show_reasoning=True, max_calls=None, short_ids=False, named=False
    )
    return OllamaAnswer(generation, text, model_name="m", chat=chat, logprobs=logprobs, clock=Clock(0, 5))


async def lines_of(one: OllamaAnswer) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in one.stream()]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_any_cut_gives_the_whole(chat: bool, wanted: bool) -> None:
    rng = random.Random(5)
    logprobs = LogprobsFormat(Tokenizer.from_json(build_tokenizer().to_str()), as_ids=False) if wanted else None
    for _ in range(200):
        text = "".join(rng.choices('ab \n"\\é龜🫠', k=rng.randint(0, 30)))
        ids = [rng.randrange(3, 200) for _ in range(rng.randint(1, 20))]
        deltas = cut(text, ids, rng.randint(1, 12), rng)
        whole = asyncio.run(answer(deltas, chat=chat, logprobs=logprobs).whole())
        parts = asyncio.run(lines_of(answer(deltas, chat=chat, logprobs=logprobs)))
        assert "".join(shown(part) for part in parts) == shown(whole) == text
        rows = [row for part in parts for row in part.get("logprobs", [])]
        assert rows == whole.get("logprobs", [])
        assert len(rows) == (len(ids) if wanted else 0)
        assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
        assert all(shown(part) or part.get("logprobs") for part in parts[:-1])
        for name in ("done_reason", "prompt_eval_count", "eval_count"):
            assert parts[-1][name] == whole[name]


def shown(part: dict[str, Any]) -> str:
    return str(part["message"]["content"] if "message" in part else part["response"])


def test_clock() -> None:
    assert Clock(100, 103, 110).durations(150) == (50, 3, 7, 40)
    # Without a token, and with a clock too coarse to see the answer pass.
    assert Clock(100, 103).durations(150) == (50, 3, 47, 1)
    assert Clock(100, 103, 150).durations(150) == (50, 3, 47, 1)


def test_timestamps_are_utc_with_a_z() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00.000000Z"
    assert timestamp().endswith("Z")
