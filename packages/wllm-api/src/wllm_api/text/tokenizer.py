"""A model's tokenizer, from the text of its tokenizer.json.

Never truncates, pads or opens a file. Thread-safe: long texts are encoded in worker threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import tokenizers

from wllm_api.errors import InvalidText, TokenizerError
from wllm_api.text.token_bytes import TokenBytes
from wllm_api.text.typed_encoder import TypedEncoder
from wllm_api.text.typed_tokens import ControlTokens, PromptText
from wllm_sched.pooling import PooledText


def _check(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"The text is not valid Unicode: character {error.start} is the lone surrogate "
            f"{text[error.start]!a}. Send whole characters (a surrogate pair, or the character itself in UTF-8)."
        ) from None


def _cut(encoding: tokenizers.Encoding, *limits: int | None) -> None:
    given = [limit for limit in limits if limit is not None]
    if given:
        encoding.truncate(min(given))


class Tokenizer:
    """Encodes texts and decodes token ids; ids that it does not know decode to the empty text."""

    def __init__(self, inner: tokenizers.Tokenizer, rules: TokenBytes) -> None:
        inner.no_truncation()
        inner.no_padding()
        added = inner.get_added_tokens_decoder()
        self._inner = inner
        self._rules = rules
        self._added = frozenset(added)
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._vocab_size = max(inner.get_vocab_size(with_added_tokens=True), 1 + max(added, default=-1))
        self._pieces: dict[int, bytes | None] = {}
        self._typed: TypedEncoder | None = None

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Build from the text of a tokenizer.json; raises `TokenizerError`."""
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exceptions
            raise TokenizerError(
                f"The tokenizer.json cannot be read: {error}. The file is damaged, or newer than the installed "
                f"tokenizers {tokenizers.__version__}: download it again, or upgrade tokenizers."
            ) from error
        decoder = inner.decoder
        # Its pickled state is its section of the file: that spares parsing tens of megabytes a second time.
        return cls(inner, TokenBytes(None if decoder is None else json.loads(decoder.__getstate__())))

    @classmethod
    def empty(cls) -> Tokenizer:
        """A tokenizer that knows no token: every id is the empty text, and nothing can be encoded."""
        return cls(tokenizers.Tokenizer(tokenizers.models.BPE()), TokenBytes(None))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included; the model's own vocabulary may be larger."""
        return self._vocab_size

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids of the special tokens, which `skip_special_tokens` leaves out of a text."""
        return self._special

    @property
    def added_tokens(self) -> dict[str, bool]:
        """The names of the tokens that were added to the vocabulary, and whether each is special."""
        return {token.content: token.special for token in self._inner.get_added_tokens_decoder().values()}

    def keep_typed(self, control: ControlTokens) -> None:
        """From now on the marked names of these tokens are text when a `PromptText` is encoded."""
        self._typed = TypedEncoder(self._inner, control)

    def special_ids(self, names: Iterable[str]) -> dict[str, int]:
        """Those of `names` that are special tokens, with their ids."""
        ids = {name: self._inner.token_to_id(name) for name in names}
        return {name: token_id for name, token_id in ids.items() if token_id in self._special}

    def id_of(self, name: str) -> int | None:
        """The id of the token that is written `name` in the vocabulary."""
        token_id: int | None = self._inner.token_to_id(name)
        return token_id

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; raises `InvalidText`."""
        if isinstance(text, PromptText) and text.typed:
            return self._encode_typed(text, add_special_tokens=add_special_tokens)
        # The library's `encode` holds the interpreter lock, which would stop every other thread during a long text.
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text, encoded in parallel; raises `InvalidText`."""
        for text in texts:
            _check(text)
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def _encode_typed(self, text: PromptText, *, add_special_tokens: bool) -> list[int]:
        assert self._typed is not None, "only a template that knows the control tokens marks their names"
        _check(text)
        ids = self._typed.encode(text)
        if not add_special_tokens:
            return ids
        plain = self.encode(str(text), add_special_tokens=False)
        full = self.encode(str(text))
        before = next(count for count in range(len(full)) if full[count : count + len(plain)] == plain)
        return full[:before] + ids + full[before + len(plain) :]

    def assemble(
        self,
        first: Sequence[str],
        second: Sequence[str] | None = None,
        *,
        add_special_tokens: bool = True,
        longest: int | None = None,
        longest_text: int | None = None,
    ) -> list[PooledText]:
        """Tokens of each text of `first`, or of each pair with a text of `second`; raises `InvalidText`.

        Texts are cut behind what fits into `longest` tokens, special ones included, and behind `longest_text` tokens of
        their own; of a pair only the second text is cut.
        """
        for text in (*first, *(second or ())):
            _check(text)
        marks = self._inner.num_special_tokens_to_add(second is not None)
        room = None if longest is None else max(longest - (marks if add_special_tokens else 0), 0)
        heads = self._pieces_of(first)
        if second is None:
            for head in heads:
                _cut(head, longest_text, room)
            whole = [self._inner.post_process(head, None, add_special_tokens) for head in heads]
            return [PooledText(encoding.ids) for encoding in whole]
        pairs = []
        for head, tail in zip(heads, self._pieces_of(second), strict=True):
            _cut(tail, longest_text, None if room is None else max(room - len(head), 0))
            pair = self._inner.post_process(head, tail, add_special_tokens)
            # Whoever puts marks between two texts also tells them apart by type; else nobody has done so yet.
            pairs.append(PooledText(pair.ids, pair.type_ids if marks else [0] * len(head) + [1] * len(tail)))
        return pairs

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`; bytes that are not UTF-8 become U+FFFD."""
        joined = bytearray()
        first = True
        for token_id in token_ids:
            piece = self.piece(token_id, first=first, skip_special_tokens=skip_special_tokens)
            if piece is not None:
                joined += piece
                first = False
        return joined.decode("utf-8", "replace")

    def piece(self, token_id: int, *, first: bool, skip_special_tokens: bool) -> bytes | None:
        """The bytes that a token adds to a text; None for one that is left out (special and skipped, or unknown).

        `first`: nothing but left-out tokens came before it.
        """
        if skip_special_tokens and token_id in self._special:
            return None
        if first:
            token = self._token(token_id)
            return None if token is None else self._rules.first(token, added=token_id in self._added)
        if token_id not in self._pieces:
            token = self._token(token_id)
            self._pieces[token_id] = None if token is None else self._rules.inner(token, added=token_id in self._added)
        return self._pieces[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes of one token inside a text, a special token's name included; b"" for an unknown id."""
        return self.piece(token_id, first=False, skip_special_tokens=False) or b""

    def token_text(self, token_id: int) -> str:
        """The bytes of one token as text; a part of a character becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _pieces_of(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        return self._inner.encode_batch_fast(list(texts), add_special_tokens=False)

    def _token(self, token_id: int) -> str | None:
        return self._inner.id_to_token(token_id) if 0 <= token_id < self._vocab_size else None
