"""`NumberLimit`: JSON numbers come to an end, though JSON's grammar lets them have digits without end.

A number between 0 and 1 may be 0.3333 and so on until the answer is cut: after `MAX_CHARACTERS` of one, tokens that go
on with it are not allowed any more, unless the grammar allows nothing else.
"""

from __future__ import annotations

from llguidance import LLTokenizer

MAX_CHARACTERS = 24
_DIGITS = frozenset(b"0123456789")
_NUMBER = frozenset(b"0123456789.+-eE")


class NumberLimit:
    """Follows the text of a JSON answer, only as far as strings and numbers go."""

    def __init__(self, tokens: list[bytes], others: int) -> None:
        self._tokens = tokens
        self._others = others  # bits of the tokens that do not go on with a number
        self._is_in_string = False
        self._is_escaped = False
        self._num_characters = 0

    @classmethod
    def of(cls, tokenizer: LLTokenizer) -> NumberLimit:
        """At the start of an answer."""
        tokens = [bytes(tokenizer.decode_bytes([token_id])) for token_id in range(tokenizer.vocab_size)]
        bits = "".join("0" if token and token[0] in _NUMBER else "1" for token in reversed(tokens))
        return cls(tokens, int(bits, 2))

    def copy(self) -> NumberLimit:
        """Another one at the same place."""
        twin = NumberLimit(self._tokens, self._others)
        twin._is_in_string, twin._is_escaped = self._is_in_string, self._is_escaped
        twin._num_characters = self._num_characters
        return twin

    def accept(self, token_id: int) -> None:
        """The answer goes on with a token."""
        for byte in self._tokens[token_id]:
            if self._is_in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif byte == 0x5C:
                    self._is_escaped = True
                elif byte == 0x22:
                    self._is_in_string = False
            elif byte == 0x22:
                self._is_in_string, self._num_characters = True, 0
            elif byte in _NUMBER and (self._num_characters or byte in _DIGITS or byte == 0x2D):
                self._num_characters += 1
            else:
                self._num_characters = 0

    def applied(self, mask: bytes) -> bytes:
        """`mask` without what goes on with a number that is long enough."""
        if self._num_characters < MAX_CHARACTERS:
            return mask
        left = int.from_bytes(mask, "little") & self._others
        return left.to_bytes(len(mask), "little") if left else mask
