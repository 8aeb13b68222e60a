"""The token list of a GGUF file: texts, kinds, special ids, and which tokens end an answer.

Facts about kinds, defaults and end tokens follow llama.cpp's src/llama-vocab.cpp, the format's reference reader.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import IntEnum

from wllm_runtime.checkpoint.errors import DamagedCheckpoint
from wllm_runtime.checkpoint.gguf_file.fields import Fields

logger = logging.getLogger(__name__)


class Kind(IntEnum):
    """What a token is (tokenizer.ggml.token_type)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL_KEYS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

# What files with a SentencePiece vocabulary mean where they name no special tokens.
_SENTENCEPIECE_DEFAULTS = {"bos_token": 1, "eos_token": 2, "unk_token": 0}

# Files often name only one end token, while the model ends with others too.
_END_TEXTS = frozenset(
    {
        "</s>",
        "<eos>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<｜end▁of▁sentence｜>",
    }
)


@dataclass(frozen=True)
class Vocabulary:
    """`ids` maps texts to ids, without padding entries; `special` maps "bos_token" and so on to ids."""

    tokens: list[str]
    kinds: list[int]
    ids: dict[str, int]
    special: dict[str, int]

    def of_kind(self, *kinds: Kind) -> list[int]:
        """Ids of the tokens of these kinds, ascending."""
        return [index for index in self.ids.values() if self.kinds[index] in kinds]

    def special_texts(self) -> dict[str, str]:
        """Texts of the special tokens, by name."""
        return {name: self.tokens[index] for name, index in self.special.items()}


def read_vocabulary(fields: Fields, vocab_size: int) -> Vocabulary:
    """The vocabulary; raises `DamagedCheckpoint` if it is missing or larger than the model's `vocab_size`."""
    tokens = fields.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise fields.missing("tokenizer.ggml.tokens")
    if len(tokens) > vocab_size:
        raise DamagedCheckpoint(
            f"{fields.path}: tokenizer.ggml.tokens has {len(tokens)} entries, the embedding only {vocab_size} rows. "
            "Use a file made by a current converter."
        )
    types = fields.numbers("tokenizer.ggml.token_type", len(tokens))
    kinds = [int(Kind.NORMAL)] * len(tokens) if types is None else types.tolist()
    ids: dict[str, int] = {}
    for index, text in enumerate(tokens):
        if not text or (kinds[index] == Kind.UNUSED and text == f"[PAD{index}]"):
            continue  # converters fill holes up to the padded size so: no text, and none is ever encoded to it
        if ids.setdefault(text, index) != index:
            logger.warning(
                "%s: token %d repeats the text %r of token %d and is never encoded to.",
                fields.path,
                index,
                text,
                ids[text],
            )
    special = {
        name: found for name, key in _SPECIAL_KEYS.items() if (found := fields.token_id(key, len(tokens))) is not None
    }
    if fields.text("tokenizer.ggml.model") == "llama":
        for name, default in _SENTENCEPIECE_DEFAULTS.items():
            if default < len(kinds) and kinds[default] in (Kind.CONTROL, Kind.UNKNOWN):
                special.setdefault(name, default)
    return Vocabulary(tokens, kinds, ids, special)


def end_token_ids(fields: Fields, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Ids that end an answer: those that the file names, then the well-known texts among its added tokens."""
    size = len(vocabulary.tokens)
    named = [index for key in _END_KEYS if (index := fields.token_id(key, size)) is not None]
    if "eos_token" in vocabulary.special:
        named.append(vocabulary.special["eos_token"])
    added = vocabulary.of_kind(Kind.CONTROL, Kind.USER_DEFINED)
    return tuple(dict.fromkeys(named + [index for index in added if vocabulary.tokens[index] in _END_TEXTS]))
