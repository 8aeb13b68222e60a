"""Token ids to text, one token at a time, at constant cost."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from wllm_api.text.tokenizer import Tokenizer

_LONGEST_HALF = 3  # bytes that an unfinished UTF-8 character can have
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text that follows `prompt_token_ids`, never a part of a character.

    `kept` are special tokens that are shown although the others are skipped.

    The pieces joined are the decode of prompt and output together, less the prompt's text and an unfinished last
    character. `tokenizers.decoders.DecodeStream` is not used: it is primed with the whole prompt, holds text back
    without limit while bytes are invalid, and can fail in the middle of a stream.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._kept = kept
        self._first = True
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        tail = b""
        for token_id in reversed(prompt_token_ids):
            piece = tokenizer.piece(token_id, first=False, skip_special_tokens=skip_special_tokens)
            if piece is not None:
                tail = piece + tail
                self._first = False
            if len(tail) >= _LONGEST_HALF:
                break
        self._utf8.decode(tail)  # a character that the prompt began is whole in the output
        self._begun = self._utf8.getstate()[0]

    def push(self, token_id: int) -> str:
        """The text that became whole with this token, often one word, sometimes nothing."""
        skip = self._skip and token_id not in self._kept
        piece = self._tokenizer.piece(token_id, first=self._first, skip_special_tokens=skip)
        if piece is None:
            return ""
        self._first = False
        text = self._utf8.decode(piece)
        return self._without_begun(text, piece) if self._begun else text

    def _without_begun(self, text: str, piece: bytes) -> str:
        # What the prompt began and the output does not continue is a broken character of the prompt's text.
        self._begun += piece
        if not text:
            return text
        broken = text[0] == _REPLACEMENT and not self._begun.startswith(_REPLACEMENT.encode())
        self._begun = b""
        return text[broken:]
