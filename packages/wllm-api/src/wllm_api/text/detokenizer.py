"""Token ids to text, one token at a time, at constant cost."""

from __future__ import annotations

from collections.abc import Sequence

from wllm_api.text.tokenizer import Tokenizer


class Detokenizer:
    """The text that follows `prompt_token_ids`, never a part of a character.

    The pieces joined are the decode of prompt and output together, less the prompt's text and an unfinished last
    character.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        raise NotImplementedError

    def push(self, token_id: int) -> str:
        """The text that became whole with this token, often one word, sometimes nothing."""
        raise NotImplementedError
