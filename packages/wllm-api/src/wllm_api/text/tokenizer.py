"""A model's tokenizer, from the text of its tokenizer.json.

Never truncates, pads or opens a file. Thread-safe: long texts are encoded in worker threads.
"""

from __future__ import annotations

from collections.abc import Sequence


class Tokenizer:
    """Encodes texts and decodes token ids; ids that it does not know decode to the empty text."""

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Build from the text of a tokenizer.json; raises `TokenizerError`."""
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included; the model's own vocabulary may be larger."""
        raise NotImplementedError

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; raises `InvalidText`."""
        raise NotImplementedError

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text, encoded in parallel; raises `InvalidText`."""
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`; bytes that are not UTF-8 become U+FFFD."""
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of one token inside a text, a special token's name included; b"" for an unknown id."""
        raise NotImplementedError

    def token_text(self, token_id: int) -> str:
        """The bytes of one token as text; a part of a character becomes U+FFFD."""
        raise NotImplementedError
