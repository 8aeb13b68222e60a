"""Tokenizers out of GGUF files: they encode and decode like the tokenizer that the file was made from."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, trainers

from wllm_runtime.checkpoint import DamagedCheckpoint, UnsupportedCheckpoint
from wllm_runtime.checkpoint.gguf_file.fields import Fields
from wllm_runtime.checkpoint.gguf_file.header import Header
from wllm_runtime.checkpoint.gguf_file.tokenizer import build_tokenizer_json
from wllm_runtime.checkpoint.gguf_file.vocabulary import end_token_ids, read_vocabulary

TRICKY = [
    "  two spaces",
    "ÄÖ 龜 🫠",
    "\n\n",
    "\n\n1.",
    "  12",
    "12345.678",
    "don't WE'RE",
    "a\t\r\n b  c   ",
    "",
    " ",
    "e\u0301",
    "👩‍👩‍👧",
]
ALPHABET = "abeWthe ofFrance 12\n\t'.ÄÖß龜🫠日本e\u0301<s>|▁"


def texts(count: int = 500) -> list[str]:
    rng = random.Random(0)
    return TRICKY + ["".join(rng.choices(ALPHABET, k=rng.randint(1, 30))) for _ in range(count)]


def build(metadata: dict[str, Any]) -> Tokenizer:
    values = {
        key: np.array(value) if isinstance(value, list) and value and not isinstance(value[0], str) else value
        for key, value in metadata.items()
        if value is not None
    }
    fields = Fields(Header(Path("tiny.gguf"), values, {}))
    vocabulary = read_vocabulary(fields, 1 << 20)
    return Tokenizer.from_str(build_tokenizer_json(fields, vocabulary, end_token_ids(fields, vocabulary)))


@pytest.fixture
def metadata(byte_level_tokenizer: Tokenizer, tokenizer_fields: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return tokenizer_fields(byte_level_tokenizer)


# Byte-level BPE


def test_byte_level_equals_the_original(byte_level_tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    tokenizer = build(metadata)
    for text in [*texts(), "<|im_start|>user\nHi<|im_end|> <|endoftext|>"]:
        ids = byte_level_tokenizer.encode(text).ids
        assert tokenizer.encode(text).ids == ids
        for skip in (False, True):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == byte_level_tokenizer.decode(
                ids, skip_special_tokens=skip
            )


def test_control_tokens_are_one_token_and_special(metadata: dict[str, Any]) -> None:
    encoding = build(metadata).encode("a<|im_end|>b")
    assert 2 in encoding.ids and build(metadata).decode(encoding.ids) == "ab"


def test_user_defined_tokens_are_found_and_printed(metadata: dict[str, Any]) -> None:
    metadata["tokenizer.ggml.tokens"][300] = "<think> it"
    metadata["tokenizer.ggml.token_type"][300] = 4
    metadata["tokenizer.ggml.merges"] = []
    tokenizer = build(metadata)
    ids = tokenizer.encode("x<think> it").ids
    assert ids[-1] == 300 and tokenizer.decode(ids) == "x<think> it"


def test_a_missing_pre_tokenizer_name_warns_and_works(
    metadata: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """R42."""
    del metadata["tokenizer.ggml.pre"]
    with caplog.at_level(logging.WARNING):
        tokenizer = build(metadata)
    assert "tokenizer.ggml.pre" in caplog.text and "tiny.gguf" in caplog.text
    for text in texts():
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_an_unknown_pre_tokenizer_name_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer\.ggml\.pre is 'brand-new'"):
        build(metadata | {"tokenizer.ggml.pre": "brand-new"})


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "no_vocab", "martian"])
def test_other_tokenizer_models_are_refused(model: str, metadata: dict[str, Any]) -> None:
    """R42."""
    with pytest.raises(UnsupportedCheckpoint, match=rf"tokenizer\.ggml\.model is '{model}'"):
        build(metadata | {"tokenizer.ggml.model": model})


@pytest.mark.parametrize("merge", ["Ġt", "", " x", "zz yy"])
def test_a_merge_that_does_not_fit_is_refused(merge: str, metadata: dict[str, Any]) -> None:
    metadata["tokenizer.ggml.merges"].append(merge)
    with pytest.raises(DamagedCheckpoint, match=r"tokenizer\.ggml\.merges"):
        build(metadata)


@pytest.mark.parametrize(("pre", "adds"), [("smollm", False), ("llama-bpe", True), ("tekken", True), ("qwen2", False)])
@pytest.mark.parametrize("flag", [None, True, False])
def test_begin_token_is_added_as_the_file_says(
    pre: str, adds: bool, flag: bool | None, metadata: dict[str, Any]
) -> None:
    tokenizer = build(metadata | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": flag})
    wanted = adds if flag is None else flag
    ids = tokenizer.encode("the").ids
    assert (ids[0] == 1) == wanted
    assert tokenizer.encode("the", add_special_tokens=False).ids == ids[wanted:]


def test_end_token_is_added_where_the_file_says_so(metadata: dict[str, Any]) -> None:
    tokenizer = build(metadata | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True})
    ids = tokenizer.encode("the", "fox").ids
    assert ids[0] == 1 and ids[-1] == 2 and ids.count(1) == ids.count(2) == 2


def test_a_begin_token_that_is_added_and_not_named_is_refused(metadata: dict[str, Any]) -> None:
    metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}
    with pytest.raises(DamagedCheckpoint, match="bos_token_id"):
        build(metadata)


def test_padding_entries_have_no_text(metadata: dict[str, Any]) -> None:
    metadata["tokenizer.ggml.tokens"] += ["[PAD320]", "[PAD321]"]
    metadata["tokenizer.ggml.token_type"] += [5, 5]
    tokenizer = build(metadata)
    assert tokenizer.decode([320, 321]) == "" and 320 not in tokenizer.encode("[PAD320]").ids


def test_a_repeated_token_is_named(metadata: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    metadata["tokenizer.ggml.tokens"] += ["the"] * 2
    metadata["tokenizer.ggml.token_type"] += [1, 1]
    with caplog.at_level(logging.WARNING):
        build(metadata)
    assert "token 321 repeats" in caplog.text


# SentencePiece


@pytest.fixture(scope="module")
def pieces() -> dict[str, Any]:
    """GGUF metadata of a SentencePiece-like vocabulary: trained pieces, scores that fall with the rank, no merges."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    corpus = [
        "What is the capital of France? ",
        "the  then   there ÄÖ ß 龜 日本",
        "aba ababa abba baab " * 3,
        "1 12 123 <s>",
    ]
    trained.train_from_iterator(corpus, trainer)
    learned = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    # SentencePiece puts single characters last, with the lowest scores. The others are shuffled, so that a pair's order
    # follows from its score and from nothing else.
    ranks = random.Random(0).sample(range(len(learned)), len(learned))
    scores = [0.0] * 259 + [-1e6 if len(token) == 1 else -float(rank) for rank, token in zip(ranks, learned)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(learned)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece(metadata: dict[str, Any], text: str) -> list[int]:
    """The published algorithm, slowly: join the best-scored neighbours, leftmost first, until none joins."""
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"]) if index >= 259}
    scores = metadata["tokenizer.ggml.scores"]
    symbols = list(text.replace(" ", "▁"))
    while True:
        joined = [
            (scores[ids[pair]], -at) for at in range(len(symbols) - 1) if (pair := "".join(symbols[at : at + 2])) in ids
        ]
        if not joined:
            break
        at = -max(joined)[1]
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
    return [
        index
        for symbol in symbols
        for index in ([ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()])
    ]


@pytest.mark.parametrize("prefix", [None, True, False])
def test_sentencepiece_equals_the_algorithm(prefix: bool | None, pieces: dict[str, Any]) -> None:
    """R42."""
    tokenizer = build(pieces | {"tokenizer.ggml.add_space_prefix": prefix})
    merged = 0
    for text in texts(1500):
        if not text or "<s>" in text:
            continue
        expected = sentencepiece(pieces, text if prefix is False else " " + text)
        assert tokenizer.encode(text).ids == expected, text
        assert tokenizer.decode(expected) == text.replace("▁", " ")
        merged += len(expected) < len(text)
    assert merged > 50


def test_sentencepiece_begin_token_is_the_default(pieces: dict[str, Any]) -> None:
    tokenizer = build(pieces | {"tokenizer.ggml.add_bos_token": None, "tokenizer.ggml.bos_token_id": None})
    assert tokenizer.encode("the").ids[0] == 1
    assert tokenizer.encode("").ids == [1]


def test_control_token_in_a_text(pieces: dict[str, Any]) -> None:
    tokenizer = build(pieces)
    assert tokenizer.encode("a<s>b").ids == [*sentencepiece(pieces, " a"), 1, *sentencepiece(pieces, " b")]


def test_scores_must_be_there(pieces: dict[str, Any]) -> None:
    with pytest.raises(DamagedCheckpoint, match=r"tokenizer\.ggml\.scores"):
        build(pieces | {"tokenizer.ggml.scores": None})


def test_a_vocabulary_without_bytes_needs_an_unknown_token(pieces: dict[str, Any]) -> None:
    tokens = ["<a>", "<b>", "<c>", *(f"b{byte}" for byte in range(256)), *pieces["tokenizer.ggml.tokens"][259:]]
    changed = pieces | {"tokenizer.ggml.tokens": tokens}
    assert build(changed).encode("🫠a").ids.count(0) == 1
    with pytest.raises(DamagedCheckpoint, match="unknown_token_id"):
        build(changed | {"tokenizer.ggml.unknown_token_id": None, "tokenizer.ggml.token_type": [1] * len(tokens)})


def test_a_large_vocabulary_without_merges_takes_seconds(pieces: dict[str, Any]) -> None:
    """R42."""
    rng = random.Random(0)
    words = sorted({"".join(rng.choices("abcdefgh▁", k=rng.randint(2, 8))) for _ in range(240_000)})[:128_000]
    letters = list("abcdefgh▁")
    tokens = [*pieces["tokenizer.ggml.tokens"][:259], *letters, *words]
    changed = pieces | {
        "tokenizer.ggml.tokens": list(dict.fromkeys(tokens)),
    }
    count = len(changed["tokenizer.ggml.tokens"])
    changed["tokenizer.ggml.scores"] = [-float(index) for index in range(count)]
    changed["tokenizer.ggml.token_type"] = [*pieces["tokenizer.ggml.token_type"][:259], *[1] * (count - 259)]
    tokenizer = build(changed)
    assert tokenizer.get_vocab_size() == count > 100_000
    assert tokenizer.decode(tokenizer.encode("abc  defg").ids) == "abc  defg"
