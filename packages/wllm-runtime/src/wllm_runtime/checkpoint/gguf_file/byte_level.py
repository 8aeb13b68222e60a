"""tokenizer.ggml.model "gpt2": byte-level BPE with the merges in the file."""

from __future__ import annotations

import logging

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.gguf_file.fields import Fields
from wllm_runtime.checkpoint.gguf_file.pretokenizers import SPLITTINGS, Splitting
from wllm_runtime.checkpoint.gguf_file.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_PRE = "tokenizer.ggml.pre"
_MERGES = "tokenizer.ggml.merges"


def build_byte_level(fields: Fields, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer without special tokens; raises a `CheckpointError` that names the field at fault."""
    merges = fields.texts(_MERGES)
    if merges is None:
        raise fields.missing(_MERGES)
    splitting = splitting_of(fields)
    pairs = [_pair(fields, merge) for merge in merges]
    try:
        model = BPE(vocabulary.ids, pairs, ignore_merges=splitting.ignore_merges)
    except Exception as error:  # tokenizers raises plain Exception
        raise DamagedCheckpoint(
            f"{fields.path}: {_MERGES} does not fit tokenizer.ggml.tokens: {error}. "
            "Use a file made by a current converter."
        ) from error
    tokenizer = Tokenizer(model)
    if splitting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in splitting.patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def splitting_of(fields: Fields) -> Splitting:
    """How the file says that text is split; raises `UnsupportedCheckpoint` for a name that we do not know."""
    name = fields.text(_PRE)
    if name is None:
        logger.warning(
            "%s does not say how its tokenizer splits text (%s is missing): the default splitting is used, and answers "
            "may be worse than they should be. Get a file made by a current converter.",
            fields.path,
            _PRE,
        )
        name = "default"
    if name not in SPLITTINGS:
        raise UnsupportedCheckpoint(
            f"{fields.path}: {_PRE} is {name!r}, which wLLM does not know; guessing it would give wrong tokens. "
            "Update wLLM, or use the safetensors version of the model."
        )
    return SPLITTINGS[name]


def _pair(fields: Fields, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise DamagedCheckpoint(
            f"{fields.path}: {_MERGES} holds {merge!r}, which is no pair of pieces. Use a file made by a current "
            "converter."
        )
    return left, right
