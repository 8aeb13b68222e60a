"""Responses that were asked to be kept: in memory, within limits, for those who have their owner's key."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from wllm_api.schemas.response_items import InputItem

MAX_RESPONSES = 256
MAX_CHARACTERS = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response; `items` are all that the model was given, `output` what it gave, both as items."""

    owner: str
    response: dict[str, object]
    items: tuple[InputItem, ...]
    output: tuple[InputItem, ...]

    @property
    def context(self) -> tuple[InputItem, ...]:
        """What an answer that goes on from here is given first."""
        return (*self.items, *self.output)


class ResponseStore:
    """The last responses; the oldest make room, by number and by size. A restart forgets them all."""

    def __init__(self, *, max_responses: int = MAX_RESPONSES, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_responses = max_responses
        self._max_characters = max_characters
        self._stored: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._num_characters = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, stored: StoredResponse) -> None:
        """Keep a response, and drop the oldest beyond the limits; one that is too large alone is dropped too."""
        size = len(json.dumps(stored.response)) + _size(stored.items)
        self._stored[str(stored.response["id"])] = stored, size
        self._num_characters += size
        while len(self._stored) > self._max_responses or self._num_characters > self._max_characters:
            _, (_, dropped) = self._stored.popitem(last=False)
            self._num_characters -= dropped

    def get(self, response_id: str, owner: str) -> StoredResponse | None:
        """The response, if it is kept and belongs to `owner`."""
        stored, _ = self._stored.get(response_id, (None, 0))
        return stored if stored is not None and stored.owner == owner else None

    def delete(self, response_id: str) -> None:
        """Forget a response that is there."""
        _, size = self._stored.pop(response_id)
        self._num_characters -= size


def _size(items: Sequence[InputItem]) -> int:
    # Those of earlier responses are shared, but may outlive them here.
    return sum(len(json.dumps(item.listed())) for item in items)
