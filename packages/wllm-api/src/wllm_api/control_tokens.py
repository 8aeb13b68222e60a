"""Which of a model's tokens steer a conversation, so that no one may write them by typing their names."""

from __future__ import annotations

from wllm_api.text import ControlTokens, Tokenizer
from wllm_api.tools import AnswerFormat


def control_tokens(tokenizer: Tokenizer, template: str, form: AnswerFormat) -> ControlTokens:
    """The special tokens, and what the template writes of others that look like them.

    Many tokenizers have added tokens that are plain text, such as runs of blanks and tags of HTML.
    """
    names = [
        name
        for name, special in tokenizer.added_tokens.items()
        if special or (name.startswith(("<", "[")) and name in template)
    ]
    is_harmony = "harmony" in (form.tools, form.reasoning)
    return ControlTokens(names, shown=() if is_harmony else form.marks(with_tools=True))
