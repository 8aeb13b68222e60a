"""Texts or token ids where a request may send one or many of either."""

from __future__ import annotations

Prompt = str | list[int]


def prompt_list(value: object) -> object:
    """A list of strings, or of lists of token ids; raises `ValueError` for anything else (pydantic)."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a string, a list of strings, a list of token ids, or a list of lists of token ids")
    prompts = [value] if _is_ids(value) else value
    if not all(isinstance(one, str) for one in prompts) and not all(_is_ids(one) for one in prompts):
        raise ValueError("mixes kinds: all prompts must be strings, or all must be lists of whole token ids")
    for number, one in enumerate(prompts):
        if isinstance(one, list) and not one:
            raise ValueError(f"number {number} is an empty list of token ids; give at least one")
    return prompts


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)
