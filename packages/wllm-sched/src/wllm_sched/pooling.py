"""Requests for vectors instead of tokens: plain data, the same border as `messages`.

A pooling engine answers a `Pool` with one `TokenEvent` for each of its texts, whose `index` is the text's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable


class PooledText(NamedTuple):
    """The tokens of one text, or of a pair; `token_type_ids` tell the two apart, None for a model without them."""

    token_ids: Sequence[int]
    token_type_ids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """A vector is wanted for each of `texts`. `request_id` is unique for the life of the engine.

    `dimensions` shortens the vectors, None for all numbers. `normalize` makes their length 1 or leaves it, None for
    what the model does by itself.
    """

    request_id: int
    texts: Sequence[PooledText]
    dimensions: int | None = None
    normalize: bool | None = None


@runtime_checkable
class Pooler(Protocol):
    """What a pooling engine has beside the `Engine` protocol."""

    def pool(self, request: Pool) -> None:
        """Queue a request; raises `RequestRefused` for one that can never run."""
