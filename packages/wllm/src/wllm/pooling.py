"""`OfflinePooler`: `LLM.embed` and `LLM.score`, from texts to tokens and from vectors to results.

Knows no engine: whoever makes it says how the vectors of texts are had.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from operator import mul
from typing import Protocol

from tqdm import tqdm

from wllm.outputs import EmbeddingOutput, EmbeddingRequestOutput, ScoringOutput, ScoringRequestOutput
from wllm_api.text import Tokenizer
from wllm_sched import ModelInfo, Pool, PooledText, TokenEvent

Vector = tuple[float, ...]


class VectorSource(Protocol):
    """Gives the vector of each text; arguments as in `Pool`."""

    def __call__(
        self, texts: Sequence[PooledText], *, dimensions: int | None = None, normalize: bool | None = None
    ) -> list[Vector]:
        """The vectors, in the order of the texts."""


class OfflinePooler:
    """Embeds and scores for one call. Texts are cut behind `truncate_prompt_tokens` tokens, -1 for the model's most.

    Raises `ValueError` for a model of another task and for texts that it cannot take.
    """

    def __init__(
        self,
        info: ModelInfo,
        tokenizer: Tokenizer | None,
        vectors: VectorSource,
        *,
        truncate_prompt_tokens: int | None = None,
    ) -> None:
        wanted, most = truncate_prompt_tokens, info.max_model_len
        if wanted is not None and (wanted == 0 or not -1 <= wanted <= most):
            raise ValueError(f"truncate_prompt_tokens is {wanted}; give 1 to {most}, or -1 for the most")
        self._info = info
        self._tokenizer = tokenizer
        self._vectors = vectors
        self._longest = most if wanted == -1 else wanted

    def embed(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """A result for each prompt, which is a text or else its token ids."""
        if self._info.task != "embed":
            raise ValueError(f"the model {self._info.model} is no embedding model (its task is {self._info.task!r})")
        texts = self._texts(prompts)
        vectors = self._vectors(texts, dimensions=dimensions, normalize=normalize)
        return [
            EmbeddingRequestOutput(prompt, list(text.token_ids), EmbeddingOutput(list(vector)))
            for (prompt, _), text, vector in zip(prompts, texts, vectors, strict=True)
        ]

    def score(self, first: str | Sequence[str], second: str | Sequence[str]) -> list[ScoringRequestOutput]:
        """A result for each pair: one text with each of many, or two lists of one length."""
        if self._info.task == "generate":
            raise ValueError(f"the model {self._info.model} writes text; score() needs a cross-encoder or an embedder")
        firsts, seconds = _pairs(first, second)
        if self._info.task == "embed":
            # Each once: a query may stand beside thousands of texts.
            distinct = list(dict.fromkeys([*firsts, *seconds]))
            texts = self._texts([(text, []) for text in distinct])
            found = dict(zip(distinct, zip(texts, self._vectors(texts, normalize=True), strict=True), strict=True))
            return [
                ScoringRequestOutput([*a.token_ids, *b.token_ids], ScoringOutput(_cosine(x, y), "cosine"))
                for (a, x), (b, y) in ((found[first], found[second]) for first, second in zip(firsts, seconds))
            ]
        pairs = self._known_tokenizer().assemble(firsts, seconds, longest=self._longest)
        return [
            ScoringRequestOutput(list(pair.token_ids), ScoringOutput(score, "cross-encoder"))
            for pair, (score,) in zip(pairs, self._vectors(pairs), strict=True)
        ]

    def _texts(self, prompts: Sequence[tuple[str | None, list[int]]]) -> list[PooledText]:
        texts = [text for text, _ in prompts if text is not None]
        assembled = iter(self._known_tokenizer().assemble(texts, longest=self._longest) if texts else ())
        return [PooledText(ids[: self._longest]) if text is None else next(assembled) for text, ids in prompts]

    def _known_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ValueError("texts need a tokenizer, and this model has none loaded; pass token ids to embed()")
        return self._tokenizer


def _cosine(first: Vector, second: Vector) -> float:
    product: float = sum(map(mul, first, second))
    # Vectors of float32 are a little longer than 1 at times.
    return min(1.0, max(-1.0, product))


def run_pool(request: Pool, step: Callable[[], list[TokenEvent]], *, use_tqdm: bool) -> list[Vector]:
    """Step the engine until it has told every vector of `request`; raises `RuntimeError` for a text that failed."""
    found: dict[int, bytes] = {}
    # Windows programs without a console have no stderr.
    with tqdm(total=len(request.texts), desc="texts", disable=not use_tqdm or sys.stderr is None) as bar:
        while len(found) < len(request.texts):
            for event in step():
                if event.request_id != request.request_id:
                    continue
                if event.vector is None:
                    raise RuntimeError(event.error or "the engine ended the request without an answer")
                found[event.index] = event.vector
                bar.update()
    return [struct.unpack(f"<{len(found[n]) // 4}f", found[n]) for n in range(len(request.texts))]


def _pairs(first: str | Sequence[str], second: str | Sequence[str]) -> tuple[list[str], list[str]]:
    firsts = [first] if isinstance(first, str) else list(first)
    seconds = [second] if isinstance(second, str) else list(second)
    if len(firsts) == 1:
        firsts *= len(seconds)
    if len(firsts) != len(seconds):
        raise ValueError(f"{len(firsts)} first texts but {len(seconds)} second ones; give one first text, or as many")
    return firsts, seconds
