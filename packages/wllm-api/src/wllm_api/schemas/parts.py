"""Message content in parts, joined to one text: what the chat schemas of all APIs do with it."""

from __future__ import annotations

from collections.abc import Mapping


def joined_text(content: object, fields: Mapping[str, str], *, noun: str = "part", separator: str = "") -> str:
    """The text of a string or of a list of objects; `fields` maps each type that has text to the field that holds it.

    Raises `ValueError` that says which `noun` is wrong.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"must be a string or a list of content {noun}s")
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError(f"{noun} {number} must be an object with a 'type'")
        field = fields.get(part["type"])
        if field is None:
            raise ValueError(f"{noun} {number} has the type '{part['type']}', which this model cannot take, only text")
        if not isinstance(part.get(field), str):
            raise ValueError(f"{noun} {number} must have a string '{field}'")
        texts.append(part[field])
    return separator.join(texts)
