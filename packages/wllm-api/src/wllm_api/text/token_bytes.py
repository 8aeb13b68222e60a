"""What bytes a token stands for: the decoder section of a tokenizer.json, taken token by token.

The decoders of language models (byte-level BPE, SentencePiece with byte fallback, Metaspace, WordPiece, plain words)
all come down to the bytes of each token, a special rule for the first one, and UTF-8 over the whole. That form is exact
in a stream at constant cost, which decoding growing windows of ids is not. A decoder of any other kind is refused by
name.

Two deliberate differences from `tokenizers`, which both lose text there: an added token is its own text, never read in
the byte-level alphabet; and among byte-fallback tokens that are not valid UTF-8 together, only the invalid bytes become
U+FFFD, not the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wllm_api.errors import TokenizerError

Json = Mapping[str, object]

# What `tokenizers` does to each token of English text that is put together of words and their parts, in this order.
_CLEANUPS = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


def _byte_level_alphabet() -> dict[str, int]:
    # GPT-2's table: printable Latin-1 bytes stand for themselves, the other bytes for U+0100 onwards, in order.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _steps(decoder: Json) -> Iterator[Json]:
    if decoder.get("type") == "Sequence":
        children = decoder.get("decoders")
        for child in children if isinstance(children, list) else ():
            yield from _steps(child)
    else:
        yield decoder


def _unsupported(step: Json) -> TokenizerError:
    return TokenizerError(
        f"The tokenizer's decoder cannot be used: its step {dict(step)} is not supported. Supported are ByteLevel, "
        "ByteFallback, Fuse, Metaspace, Replace of one string, Strip at the start, and WordPiece; use a model with one "
        "of those."
    )


class TokenBytes:
    """Bytes of single tokens under the rules of `decoder` (None joins tokens with spaces); raises `TokenizerError`."""

    def __init__(self, decoder: Json | None) -> None:
        self._alphabet: dict[str, int] | None = None
        self._byte_fallback = False
        self._replacements: list[tuple[str, str]] = []
        self._metaspace: str | None = None
        self._strip: tuple[bytes, int] | None = None
        self._words = decoder is None
        self._word_part: str | None = None
        self._cleans = False
        fused = False
        for step in _steps(decoder) if decoder is not None else ():
            match step:
                case {"type": "ByteLevel"}:
                    self._alphabet = _byte_level_alphabet()
                case {"type": "ByteFallback"}:
                    self._byte_fallback = True
                case {"type": "Fuse"}:
                    fused = True
                case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if (
                    len(old) == 1 or not fused
                ):
                    self._replacements.append((old, new))
                case {"type": "Metaspace", "replacement": str(mark)}:
                    self._replacements.append((mark, " "))
                    if step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True):
                        self._metaspace = mark
                case {"type": "WordPiece", "prefix": str(part), "cleanup": bool(cleans)}:
                    self._word_part, self._cleans = part, cleans
                case {"type": "Strip", "content": str(content), "start": int(count), "stop": 0} if fused:
                    self._strip = content.encode("utf-8"), count
                case _:
                    raise _unsupported(step)
        if self._alphabet is not None and (self._replacements or self._byte_fallback or self._strip):
            raise _unsupported(decoder or {})  # byte-level tokens are bytes: another step has nothing left to do

    def inner(self, token: str, *, added: bool) -> bytes:
        """Bytes of `token` anywhere but at the start of a text."""
        if self._alphabet is not None:
            if not added and all(char in self._alphabet for char in token):
                return bytes(self._alphabet[char] for char in token)
            return token.encode("utf-8")
        if self._words:
            return b" " + token.encode("utf-8")
        if self._word_part is not None:
            is_part = token.startswith(self._word_part)
            return self._cleaned(token.removeprefix(self._word_part) if is_part else f" {token}")
        for old, new in self._replacements:
            token = token.replace(old, new)
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass  # a token that only looks like a byte is text
        return token.encode("utf-8")

    def first(self, token: str, *, added: bool) -> bytes:
        """Bytes of `token` at the start of a text, where the space that the encoder put there is taken off again."""
        if self._word_part is not None:
            return self._cleaned(token)
        if self._metaspace is not None:
            token = token.replace(self._metaspace, "")
        piece = self.inner(token, added=added)
        if self._words:
            return piece[1:]
        if self._strip is not None:
            content, count = self._strip
            while count and piece.startswith(content):
                piece, count = piece[len(content) :], count - 1
        return piece

    def _cleaned(self, token: str) -> bytes:
        for old, new in _CLEANUPS if self._cleans else ():
            token = token.replace(old, new)
        return token.encode("utf-8")
