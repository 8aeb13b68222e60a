"""What each API tells the chat template of thinking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_client import ServerClient

USER = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/messages": {"messages": USER, "max_tokens": 4},
    "/v1/responses": {"input": "Hi"},
    "/api/chat": {"model": "scripted", "messages": USER, "stream": False},
    "/api/generate": {"model": "scripted", "prompt": "Hi", "stream": False},
}
# Says whether a variable is not there at all, too: templates have defaults of their own.
TEMPLATE = (
    "{{ messages[0].content }} "
    "{{ enable_thinking if enable_thinking is defined else '-' }} "
    "{{ reasoning_effort if reasoning_effort is defined else '-' }} "
    "{{ thinking_budget if thinking_budget is defined else '-' }}{# </think> #}"
)
OLLAMAS = [
    ({}, "- - -"), ({"think": True}, "True - -"), ({"think": False}, "False - -"), ({"think": "low"}, "True low -"),
    ({"think": "max"}, "True max -"),
]  # fmt: skip
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {}, "- - -"),
    ("/v1/chat/completions", {"reasoning_effort": "high"}, "True high -"),
    ("/v1/chat/completions", {"reasoning_effort": "none"}, "False none -"),
    # Anthropic's clients ask for thoughts when they want any.
    ("/v1/messages", {}, "False - -"),
    ("/v1/messages", {"thinking": {"type": "disabled", "budget_tokens": 5}}, "False - -"),
    ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 2048}}, "True - 2048"),
    ("/v1/messages", {"thinking": {"type": "adaptive"}}, "True - -"),
    ("/v1/messages", {"output_config": {"effort": "low"}}, "False low -"),
    ("/v1/responses", {}, "- - -"),
    ("/v1/responses", {"reasoning": {"effort": "high"}}, "True high -"),
    ("/v1/responses", {"reasoning": {"effort": "none"}}, "False none -"),
    *((path, fields, told) for path in ("/api/chat", "/api/generate") for fields, told in OLLAMAS),
]


@pytest.fixture(scope="module")
def telling(start_server: Any) -> Iterator[ServerClient]:
    """A server whose chat template writes down what it is told."""
    with start_server(chat_template=TEMPLATE) as client:
        yield client


@pytest.mark.parametrize(("path", "fields", "told"), CASES)
def test_what_the_template_is_told(
    telling: ServerClient, sent: Callable[[Any], list[Any]], path: str, fields: dict[str, Any], told: str
) -> None:
    seen = sent(telling)
    telling.ask(path, **BODIES[path], **fields)
    ((token_ids, _),) = seen
    assert telling.text_of(token_ids) == f"Hi {told}"
