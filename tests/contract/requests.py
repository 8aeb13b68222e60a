"""Requests of the contract tests, as the packages want them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

CITY = {
    "type": "object",
    "additionalProperties": False,
    "required": ["city"],
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def extras_of(method: Callable[..., object], fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` with those that the method has no argument for, or that are null, in its `extra_body`."""
    own = inspect.signature(method).parameters
    extra = {name: value for name, value in fields.items() if name not in own or value is None}
    return {name: value for name, value in fields.items() if name not in extra} | {"extra_body": extra}


def later(*values: object) -> Any:
    """A case of a parametrised test for the full counts only."""
    return pytest.param(*values, id=str(values[0]), marks=pytest.mark.full)


def function(name: str = "get_weather", parameters: object = CITY, **more: object) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def schema_form(schema: object, **more: object) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def text_of(answer: Any) -> str:
    """The text of a whole chat answer."""
    return str(answer.choices[0].message.content)


def joined(chunks: Iterable[Any]) -> str:
    """The text of a chat stream's first choice."""
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == 0)
