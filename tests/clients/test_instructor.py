"""instructor: objects in each of its modes, whole and in parts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from server.running_server import RunningServer

pytest.importorskip("instructor", reason="nox -s clients installs it")

import instructor
from instructor.core.exceptions import IncompleteOutputException


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(params=["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def ask(server: RunningServer, request: pytest.FixtureRequest) -> Any:
    client = instructor.from_openai(server.client(), mode=instructor.Mode[request.param])
    fields: Any = {
        "model": server.model(), "response_model": Person, "max_tokens": 80, "max_retries": 0,
        "messages": [{"role": "user", "content": "Ada is 36 years old. As JSON."}],
    }  # fmt: skip
    return client.chat.completions, fields


def test_object(ask: Any) -> None:
    """At the first try: these schemas say nothing of other properties, which would never end."""
    completions, fields = ask
    assert isinstance(completions.create(**fields), Person)


def test_parts(ask: Any) -> None:
    completions, fields = ask
    *_, last = completions.create_partial(**fields)
    assert last.age is not None and last.name


def test_provider(server: RunningServer) -> None:
    client = instructor.from_provider(f"openai/{server.model()}", base_url=f"{server.url}/v1", api_key="none")
    messages = [{"role": "user", "content": "Ada is 36 years old."}]
    assert isinstance(client.create(response_model=Person, messages=messages, max_tokens=80), Person)


def test_cut_answer(ask: Any) -> None:
    completions, fields = ask
    with pytest.raises(IncompleteOutputException):
        completions.create(**{**fields, "max_tokens": 2})
