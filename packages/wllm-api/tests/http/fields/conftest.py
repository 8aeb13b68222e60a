"""The servers that the cases of the fields are sent to."""

from collections.abc import Iterator
from typing import Any

import pytest
from field_probe import FIM_TOKENS, REPLY, TEMPLATE, Probe


@pytest.fixture(scope="session")
def probe(start_server: Any) -> Iterator[Probe]:
    """A server whose answers tell of the prompt, and of the seed when they are drawn."""
    with start_server(chat_template=TEMPLATE, adds_begin_token=True, more_special_tokens=FIM_TOKENS) as client:
        yield Probe(client)


@pytest.fixture(scope="session")
def caller(start_server: Any) -> Iterator[Probe]:
    """A server that thinks, answers, and makes two calls."""
    with start_server(chat_template=TEMPLATE, reply=REPLY) as client:
        yield Probe(client)
