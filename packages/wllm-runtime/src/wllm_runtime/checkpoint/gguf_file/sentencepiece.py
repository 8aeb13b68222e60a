"""tokenizer.ggml.model "llama": a SentencePiece BPE vocabulary with scores and no merges.

SentencePiece joins the two neighbours whose union has the best score. The same is a list of merges, ordered by the
score of what they make; ties in the order of transformers' own conversion, so that both encode alike.
"""

from __future__ import annotations

import logging

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from wllm_runtime.checkpoint.errors import DamagedCheckpoint
from wllm_runtime.checkpoint.gguf_file.fields import Fields
from wllm_runtime.checkpoint.gguf_file.vocabulary import Kind, Vocabulary

logger = logging.getLogger(__name__)

_SCORES = "tokenizer.ggml.scores"
_SPACE = "▁"


def build_sentencepiece(fields: Fields, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer without special tokens; raises `DamagedCheckpoint` that names the field at fault."""
    scores = fields.numbers(_SCORES, len(vocabulary.tokens))
    if scores is None:
        raise fields.missing(_SCORES)
    if fields.flag("tokenizer.ggml.remove_extra_whitespaces"):
        logger.warning("%s asks for extra spaces to be removed from texts; wLLM keeps them.", fields.path)
    unknown = vocabulary.special_texts().get("unk_token") or _first_unknown(vocabulary)
    byte_fallback = all(f"<0x{byte:02X}>" in vocabulary.ids for byte in range(256))
    if unknown is None and not byte_fallback:
        raise DamagedCheckpoint(
            f"{fields.path}: the vocabulary has neither the 256 byte tokens nor an unknown token "
            "(tokenizer.ggml.unknown_token_id), so some texts cannot be encoded. Use a file made by a current "
            "converter."
        )
    model = BPE(
        vocabulary.ids,
        derive_merges(vocabulary, scores.tolist()),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )
    tokenizer = Tokenizer(model)
    prefix = fields.flag("tokenizer.ggml.add_space_prefix") is not False
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def derive_merges(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """All pairs of ordinary tokens whose union is an ordinary token, best union first."""
    ordinary = {vocabulary.tokens[index]: index for index in vocabulary.of_kind(Kind.NORMAL)}
    found: list[tuple[float, int, int, int, str, str]] = []
    for text, index in ordinary.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ordinary and right in ordinary:
                found.append((-scores[index], -cut, cut - len(text), index, left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _first_unknown(vocabulary: Vocabulary) -> str | None:
    unknown = vocabulary.of_kind(Kind.UNKNOWN)
    return vocabulary.tokens[unknown[0]] if unknown else None
