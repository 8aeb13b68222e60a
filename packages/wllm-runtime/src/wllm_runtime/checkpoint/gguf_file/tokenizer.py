"""The tokenizer of a GGUF file as the text of a tokenizer.json.

Owns what both kinds of vocabulary share: special and user-defined tokens, which are found in the text before all else,
and the begin and end tokens that encoding adds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.gguf_file.byte_level import build_byte_level, splitting_of
from wllm_runtime.checkpoint.gguf_file.fields import Fields
from wllm_runtime.checkpoint.gguf_file.sentencepiece import build_sentencepiece
from wllm_runtime.checkpoint.gguf_file.vocabulary import Kind, Vocabulary

_MODEL = "tokenizer.ggml.model"
_ADD_BOS = "tokenizer.ggml.add_bos_token"
_ADD_EOS = "tokenizer.ggml.add_eos_token"


def build_tokenizer_json(fields: Fields, vocabulary: Vocabulary, end_ids: Sequence[int]) -> str:
    """The text of a tokenizer.json; raises a `CheckpointError` that names the field at fault."""
    model = fields.text(_MODEL)
    if model is None:
        raise fields.missing(_MODEL)
    if model == "gpt2":
        tokenizer = build_byte_level(fields, vocabulary)
        default_bos = splitting_of(fields).add_bos
    elif model == "llama":
        tokenizer = build_sentencepiece(fields, vocabulary)
        default_bos = True
    else:
        raise UnsupportedCheckpoint(
            f"{fields.path}: {_MODEL} is {model!r}, a kind of tokenizer that wLLM does not build from GGUF. Supported: "
            "'gpt2' (byte-level BPE), 'llama' (SentencePiece BPE). Use the safetensors version of the model."
        )
    tokenizer.add_tokens(_added_tokens(vocabulary, end_ids))
    add_bos = fields.flag(_ADD_BOS)
    _add_affixes(
        tokenizer,
        bos=_affix(fields, vocabulary, "bos_token", default_bos if add_bos is None else add_bos),
        eos=_affix(fields, vocabulary, "eos_token", fields.flag(_ADD_EOS) or False),
    )
    return str(tokenizer.to_str())


def _added_tokens(vocabulary: Vocabulary, end_ids: Sequence[int]) -> list[AddedToken]:
    special = {*vocabulary.of_kind(Kind.CONTROL, Kind.UNKNOWN), *end_ids}
    if "bos_token" in vocabulary.special:
        special.add(vocabulary.special["bos_token"])
    added = sorted({*special, *vocabulary.of_kind(Kind.USER_DEFINED)})
    return [AddedToken(vocabulary.tokens[index], special=index in special, normalized=False) for index in added]


def _affix(fields: Fields, vocabulary: Vocabulary, name: str, wanted: bool) -> int | None:
    if wanted and name not in vocabulary.special:
        raise DamagedCheckpoint(
            f"{fields.path}: the tokenizer adds its {name} to every prompt, and tokenizer.ggml.{name}_id is missing. "
            "Use a file made by a current converter."
        )
    return vocabulary.special[name] if wanted else None


def _add_affixes(tokenizer: Tokenizer, bos: int | None, eos: int | None) -> None:
    if bos is None and eos is None:
        return
    tokens = {"bos": bos, "eos": eos}
    before = ["bos"] if bos is not None else []
    after = ["eos"] if eos is not None else []
    first = [*before, "$A", *after]
    tokenizer.post_processor = TemplateProcessing(
        single=first,
        pair=[*first, *(f"{name}:1" for name in before), "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=[
            {"id": name, "ids": [index], "tokens": [tokenizer.id_to_token(index)]}
            for name, index in tokens.items()
            if index is not None
        ],
    )
