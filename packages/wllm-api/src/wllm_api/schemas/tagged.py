"""Lists whose objects have a `type` that says which fields they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Tag

from wllm_api.schemas.base import Part


def tag(kind: str) -> Tag:
    """The tag of a type. It is no field, so errors leave it out of their paths (see `bodies`)."""
    return Tag(f"<{kind}>")


def is_tag(part: str) -> bool:
    """Whether a part of an error's path is such a tag."""
    return part.startswith("<")


def tag_of(default: str | None = None) -> Callable[[object], str | None]:
    """What finds the tag of a value; `default` is the type of objects that name none."""

    def found(value: object) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return f"<{default if kind is None else kind}>"

    return found


def known_type(noun: str, kinds: tuple[str, ...], default: str | None = None) -> Callable[[Any], Any]:
    """A check before the tag is looked for; its words tell what is taken. Raises `ValueError`."""

    def check(value: Any) -> Any:
        if isinstance(value, Part):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"must be {noun}, which is an object")
        kind = value.get("type", default)
        kind = default if kind is None else kind
        if kind not in kinds:
            *others, last = (f"'{one}'" for one in kinds)
            known = f"{', '.join(others)} and {last}" if others else last
            raise ValueError(f"has the type {kind!r:.80}, which this server cannot take, only {known}")
        return value

    return check
