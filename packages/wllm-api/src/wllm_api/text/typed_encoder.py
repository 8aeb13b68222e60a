"""`TypedEncoder`: encodes prompts in which names of control tokens are to stay text."""

from __future__ import annotations

import json
import secrets

import tokenizers

from wllm_api.errors import InvalidText
from wllm_api.text.typed_tokens import ControlTokens, PromptText


class TypedEncoder:
    """A twin of a tokenizer in which the control tokens have names that no one types; built at its first use."""

    def __init__(self, inner: tokenizers.Tokenizer, control: ControlTokens) -> None:
        self._inner = inner
        self._control = control
        self._twin: tokenizers.Tokenizer | None = None
        self._names: dict[str, str] = {}
        self._ids: dict[int, int] = {}

    def encode(self, text: PromptText) -> list[int]:
        """Token ids of the text, without what the tokenizer adds; raises `InvalidText`."""
        twin = self._twin if self._twin is not None else self._built()
        parts = [(self._names.get(part, part) if is_token else part) for part, is_token in self._control.parts(text)]
        hidden = {self._inner.token_to_id(text[start:end]) for start, end in text.typed}
        ids = twin.encode_batch_fast(["".join(parts)], add_special_tokens=False)[0].ids
        found = next((token_id for token_id in ids if token_id not in self._ids and token_id in hidden), None)
        if found is not None:
            raise InvalidText(
                f"The text has {self._inner.id_to_token(found)!r}, the name of a control token, which this model's "
                "tokenizer cannot write as text. Spell it another way."
            )
        return [self._ids.get(token_id, token_id) for token_id in ids]

    def _built(self) -> tokenizers.Tokenizer:
        state = json.loads(self._inner.to_str())
        names: dict[str, str] = {}
        nonce = secrets.token_hex(8)
        for number, token in enumerate(state["added_tokens"]):
            if self._control.names(token["content"]):
                names[token["content"]] = f"\ufdd0{nonce}.{number}\ufdd1"
                token["content"] = names[token["content"]]
        twin = tokenizers.Tokenizer.from_str(json.dumps(state))
        for token_id, token in self._inner.get_added_tokens_decoder().items():
            # A token that the vocabulary has too gets another id under another name.
            new_id = twin.token_to_id(names.get(token.content, token.content))
            assert new_id is not None, "every added token is in the twin"
            self._ids[new_id] = token_id
        self._names, self._twin = names, twin
        return twin
