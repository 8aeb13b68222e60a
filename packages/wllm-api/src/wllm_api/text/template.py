"""A model's chat template: messages to prompt text, as transformers renders it.

Templates come with model files, so they are untrusted: they run sandboxed, with counted iterations and bounded sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class ChatTemplate:
    """A compiled chat template; raises `TemplateError` when `source` cannot be parsed."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        raise NotImplementedError

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt for `messages`; `extra` are further template variables. Raises `TemplateError`."""
        raise NotImplementedError
