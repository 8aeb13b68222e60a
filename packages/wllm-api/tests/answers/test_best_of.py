"""`best_of`: the answers of the highest mean log-probability, the best first."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from wllm_api.answers.completions import CompletionAnswer
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.generation import Generation
from wllm_api.schemas.completions import CompletionRequest
from wllm_api.text import TextDelta, Tokenizer
from wllm_sched.plan import TokenLogprobs


class Finished:
    """Stands in for a `Generation`: choices named "0", "1", ... with these log-probabilities of their tokens."""

    num_prompt_tokens = 1
    num_cached_tokens = 0

    def __init__(self, logprobs: list[list[float]]) -> None:
        self._logprobs = logprobs
        self.num_completion_tokens = sum(map(len, logprobs))

    async def deltas(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        for number, values in enumerate(self._logprobs):
            rows = tuple(TokenLogprobs(5, value, 1, ()) for value in values)
            # The last token is an end token, which has no place in the answer.
            yield number, TextDelta(str(number), (5,) * len(rows), rows, (0,) * len(rows), 1, "stop")


def texts(logprobs: list[list[float]], **fields: Any) -> list[tuple[int, str]]:
    body = CompletionRequest.model_validate({"prompt": "x", **fields})
    names = LogprobsFormat(Tokenizer.from_json(build_tokenizer().to_str()), as_ids=False)
    generation = cast(Generation, Finished(logprobs))
    answer = CompletionAnswer(
        body, generation, answer_id="1", model_name="m", prompts=[[5], [5]], logprobs=names, echoes=[]
    )
    choices = cast(Any, asyncio.run(answer.whole()))["choices"]
    return [(choice["index"], choice["text"]) for choice in choices]


END = -50.0


def test_best_come_first() -> None:
    # The sum of 1 is the highest, but not its mean.
    logprobs = [[-0.5, -0.5, -0.5, END], [-1.0, END], [float("-inf"), END], [-0.1, -0.2, -0.1, -0.2, -0.1, END]]
    assert texts(logprobs, best_of=4) == [(0, "3")]
    assert texts(logprobs, best_of=4, n=3) == [(0, "3"), (1, "0"), (2, "1")]


def test_each_prompt_has_its_own_best() -> None:
    logprobs = [[-2.0, END], [-1.0, END], [-3.0, END], [-4.0, END]]
    assert texts(logprobs, best_of=2) == [(0, "1"), (1, "2")]


@pytest.mark.parametrize("fields", [{"n": 2}, {"n": 2, "best_of": 2}])
def test_nothing_to_choose(fields: dict[str, Any]) -> None:
    assert texts([[-2.0, END], [-1.0, END]], **fields) == [(0, "0"), (1, "1")]


def test_answer_without_tokens_is_the_worst() -> None:
    assert texts([[END], [-9.0, END]], best_of=2) == [(0, "1")]
