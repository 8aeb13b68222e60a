"""The tokenizer of a model directory: its tokenizer.json, chat template and special tokens, as data.

tokenizer.json is passed on as text and never rebuilt by class: its own post-processor decides whether a begin token is
added (as in transformers, which ignores `add_bos_token` where there is a tokenizer.json). Only truncation and padding
are taken out, since a server must never cut a prompt silently. Knows nothing of weights.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wllm_runtime.checkpoint.errors import DamagedCheckpoint, ModelNotFound, UnsupportedCheckpoint
from wllm_runtime.checkpoint.jsonfile import parse_object, read_object, read_text

logger = logging.getLogger(__name__)

# The second and third are those of encoders: WordPiece, and SentencePiece of the RoBERTa family.
_CONVERTIBLE = ("tokenizer.model", "vocab.txt", "sentencepiece.bpe.model")

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """`token_ids` holds the ids of the special tokens that have one, by name."""

    tokenizer_json: str | None
    chat_template: str | None
    special_tokens: Mapping[str, str]
    token_ids: Mapping[str, int]


def read_tokenizer_files(directory: Path, *, skip_tokenizer: bool = False) -> TokenizerFiles:
    """Reads the tokenizer's files; raises `ModelNotFound` or `UnsupportedCheckpoint` where there is no usable one."""
    settings = read_object(directory / "tokenizer_config.json")
    special_tokens = _special_tokens(read_object(directory / "special_tokens_map.json") | settings)
    template = _chat_template(directory, settings)
    if skip_tokenizer:
        return TokenizerFiles(None, template, special_tokens, {})
    path = directory / "tokenizer.json"
    if path.is_file():
        text = read_text(path)
    else:
        text, known = _converted(directory)
        special_tokens = known | special_tokens
    tokenizer = parse_object(text, path)
    if tokenizer.get("truncation") is not None or tokenizer.get("padding") is not None:
        tokenizer["truncation"] = tokenizer["padding"] = None
        text = json.dumps(tokenizer, ensure_ascii=False)
    try:
        ids = _ids(tokenizer)
    except (KeyError, IndexError, TypeError) as error:
        raise DamagedCheckpoint(
            f"{path} is JSON, but no tokenizer ({type(error).__name__}: {error}). Fetch the file again."
        ) from error
    _warn_of_missing(settings, ids, path)
    return TokenizerFiles(
        text, template, special_tokens, {name: ids[token] for name, token in special_tokens.items() if token in ids}
    )


def _special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in SPECIAL_NAMES:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _chat_template(directory: Path, settings: Mapping[str, object]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named ones; "default" is the one for plain chats
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
        if template is None and named:
            logger.warning(
                "%s: the chat templates %s hold no 'default'; none is used.",
                directory / "tokenizer_config.json",
                sorted(map(str, named)),
            )
    return template if isinstance(template, str) else None


def _ids(tokenizer: Mapping[str, object]) -> dict[str, int]:
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids: dict[str, int] = {}
    if isinstance(vocabulary, dict):
        ids.update(vocabulary)
    elif isinstance(vocabulary, list):  # Unigram: [[piece, score], ...]
        ids.update((piece[0], index) for index, piece in enumerate(vocabulary))
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        ids[token["content"]] = token["id"]
    return ids


def _warn_of_missing(settings: Mapping[str, object], ids: Mapping[str, int], path: Path) -> None:
    added = settings.get("added_tokens_decoder")
    if not isinstance(added, dict):
        return
    texts = [str(token.get("content")) for token in added.values() if isinstance(token, dict)]
    missing = [text for text in texts if text not in ids]
    if missing:
        logger.warning(
            "%s lacks %d tokens that tokenizer_config.json lists (%s): they are encoded as plain text.",
            path,
            len(missing),
            ", ".join(missing[:4]),
        )


def _converted(directory: Path) -> tuple[str, dict[str, str]]:
    source = next((name for name in _CONVERTIBLE if (directory / name).is_file()), None)
    if source is None:
        raise ModelNotFound(
            f"{directory} holds neither tokenizer.json nor tokenizer.model. Fetch one of them, or skip the tokenizer "
            "and send token ids."
        )
    from transformers import AutoTokenizer  # only here: it is slow to import, and few models lack a tokenizer.json

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
        special_tokens = {name: str(getattr(tokenizer, name)) for name in SPECIAL_NAMES if getattr(tokenizer, name)}
        return str(tokenizer.backend_tokenizer.to_str()), special_tokens
    except Exception as error:  # whatever the conversion raises, from ImportError to a parser's own kind
        raise UnsupportedCheckpoint(
            f"{directory / source} could not be converted to a tokenizer.json: {error}. Fetch the model's "
            "tokenizer.json, or `pip install sentencepiece protobuf` and start again."
        ) from error
