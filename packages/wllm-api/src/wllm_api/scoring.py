"""Scores of pairs: those of a cross-encoder, or the cosine between the vectors of an embedding model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from operator import mul

from wllm_api.hosting import LoadedModel
from wllm_api.inputs import pooled_inputs, pooled_pairs
from wllm_api.pooling import Pooling, numbers
from wllm_api.schemas.embeddings import PooledFields
from wllm_api.serving import Serving


@dataclass(frozen=True, slots=True)
class Scores:
    """A score a pair; `method` is "cross-encoder" or "cosine"."""

    values: list[float]
    method: str
    num_prompt_tokens: int


class Scorer:
    """Scores pairs for one request; `names` are the fields that hold the first and the second texts."""

    def __init__(self, serving: Serving, model: LoadedModel, fields: PooledFields, names: tuple[str, str]) -> None:
        self._serving = serving
        self._model = model
        self._fields = fields
        self._names = names

    async def scores(self, first: Sequence[str], second: Sequence[str], *, longest_text: int | None = None) -> Scores:
        """Of each text of `second` with the one text of `first`, or with that of the same number; raises `HttpError`.

        `longest_text` is how many tokens of a second text count.
        """
        if self._model.info.task == "score":
            return await self._by_classifier(first, second, longest_text)
        return await self._by_cosine(first, second, longest_text)

    async def _by_classifier(self, first: Sequence[str], second: Sequence[str], longest: int | None) -> Scores:
        each = first if len(first) == len(second) else [first[0]] * len(second)
        pairs = await pooled_pairs(each, second, self._model, self._fields, longest_text=longest, names=self._names)
        pooling = Pooling(self._serving, self._model, pairs)
        values = [0.0] * len(pairs)
        async with aclosing(pooling.vectors()) as vectors:
            async for number, vector in vectors:
                (values[number],) = numbers(vector)
        return Scores(values, "cross-encoder", pooling.num_prompt_tokens)

    async def _by_cosine(self, first: Sequence[str], second: Sequence[str], longest: int | None) -> Scores:
        fields, (name_1, name_2) = self._fields, self._names
        texts = await pooled_inputs(first, self._model, fields, param=name_1)
        texts += await pooled_inputs(second, self._model, fields, param=name_2, longest_text=longest)
        pooling = Pooling(self._serving, self._model, texts, normalize=True)
        found: dict[int, bytes] = {}
        async with aclosing(pooling.vectors()) as vectors:
            async for number, vector in vectors:
                found[number] = vector
        values = []
        for number in range(len(second)):
            of_first = found[number if len(first) == len(second) else 0]
            cosine = sum(map(mul, numbers(of_first), numbers(found[len(first) + number])))
            # Vectors of float32 are a little longer than 1 at times, and clients take a cosine at its word.
            values.append(min(1.0, max(-1.0, cosine)))
            await asyncio.sleep(0)  # thousands of these take a while, and others want to be served
        return Scores(values, "cosine", pooling.num_prompt_tokens)
