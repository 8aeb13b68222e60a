"""POST /rerank (Jina's and Cohere's shape) and POST /score (vLLM's)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, StrictInt, StrictStr, model_validator

from wllm_api.schemas.base import Count, Flag
from wllm_api.schemas.embeddings import PooledFields, TextList


def _texts(value: object) -> object:
    if not isinstance(value, list):
        return value
    texts = [one.get("text") if isinstance(one, dict) else one for one in value]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"number {number} must be a string or an object with a string 'text'")
    return texts


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


class RerankRequest(PooledFields):
    """A query, and documents to sort by how well they answer it."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **PooledFields.unsupported,
        "max_chunks_per_doc": (),
        "overlap_tokens": (),
        "rank_fields": ([], ["text"]),
    }

    query: StrictStr
    """What is looked for."""
    documents: Annotated[TextList, Field(min_length=1), BeforeValidator(_texts)]
    """Up to 2048 texts, as strings or as objects with a "text"."""
    top_n: Count = 0
    """How many of the best to return; 0 for all."""
    return_documents: Flag | None = None
    """Repeat the documents in the answer; absent: yes, but not on /v2/rerank."""
    max_tokens_per_doc: Annotated[StrictInt, Field(ge=1)] | None = None
    """Read so many tokens of each document, from its beginning."""


class ScoreRequest(PooledFields):
    """Pairs of texts to score: one text with each of many, or two lists of one length."""

    text_1: Annotated[TextList, Field(min_length=1), BeforeValidator(_one_or_many)]
    """The first text of each pair, or one for all pairs."""
    text_2: Annotated[TextList, Field(min_length=1), BeforeValidator(_one_or_many)]
    """The second texts."""

    @model_validator(mode="after")
    def _pairs_up(self) -> Self:
        if len(self.text_1) not in (1, len(self.text_2)):
            raise ValueError(
                f"'text_1' has {len(self.text_1)} texts and 'text_2' {len(self.text_2)}: give one 'text_1', or as many "
                "of both"
            )
        return self
