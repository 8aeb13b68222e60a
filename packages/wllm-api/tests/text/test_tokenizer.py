"""Tokenizer against the tokenizers library, and where it must differ from it."""

import json
import random
import threading
import time
from collections.abc import Callable

import pytest
import tokenizers

from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.errors import InvalidText, TokenizerError
from wllm_api.text import Tokenizer


def _strictly_valid(reference: tokenizers.Tokenizer, ids: list[int]) -> bool:
    # A run of byte-fallback tokens that is not UTF-8 is all replaced by the library; we keep its valid characters.
    tokens = [reference.id_to_token(token_id) or "" for token_id in ids]
    run = bytearray()
    for token in [*tokens, "end"]:
        if token.startswith("<0x"):
            run.append(int(token[3:5], 16))
            continue
        try:
            run.decode("utf-8")
        except UnicodeDecodeError:
            return False
        run.clear()
    return True


@pytest.mark.parametrize("skip", [True, False])
def test_encode_and_decode_equal_the_library(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, texts: tuple[str, ...], skip: bool
) -> None:
    for text in texts:
        ids = reference.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_decode_as_the_library_does(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, rng: random.Random, skip: bool
) -> None:
    compared = 0
    for _ in range(2000):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(0, 10))]
        if _strictly_valid(reference, ids):
            compared += 1
            assert tokenizer.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)
    assert compared >= 100


def test_invalid_bytes_do_not_spoil_the_characters_beside_them(sentencepiece: Tokenizer) -> None:
    ids = [3 + byte for byte in "龜".encode()] + [3 + 0xFF]
    assert sentencepiece.decode(ids) == "龜\ufffd"


def test_batches_equal_single_texts(tokenizer: Tokenizer, texts: tuple[str, ...]) -> None:
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_text_is_never_cut_or_padded(reference: tokenizers.Tokenizer) -> None:
    reference.enable_truncation(3)
    reference.enable_padding(length=50)
    tokenizer = Tokenizer.from_json(reference.to_str())
    ids = tokenizer.encode("the hello, the hello, the hello")
    assert 6 <= len(ids) < 50
    assert len(tokenizer.encode_batch(["the"])[0]) < 10


def test_unknown_ids_are_empty_text(tokenizer: Tokenizer) -> None:
    # R41: the model's vocabulary is larger than the tokenizer's.
    beyond = tokenizer.vocab_size + 7
    ids = tokenizer.encode("the hello")
    assert tokenizer.decode([beyond, *ids[:1], beyond, *ids[1:], -1]) == tokenizer.decode(ids)
    assert tokenizer.token_bytes(beyond) == b""
    assert tokenizer.token_text(beyond) == ""


def test_token_bytes_join_to_the_text(byte_level: Tokenizer, texts: tuple[str, ...]) -> None:
    for text in texts:
        assert b"".join(map(byte_level.token_bytes, byte_level.encode(text))) == text.encode()


def test_bytes_of_each_kind_of_token(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    assert byte_level.token_bytes(byte_level.encode(" the")[0]) == b" the"
    assert byte_level.token_bytes(1) == b"<|im_start|>"
    assert byte_level.token_text(byte_level.encode("é")[0]) == "\ufffd"
    assert sentencepiece.token_bytes(3 + 0xE9) == b"\xe9"
    assert sentencepiece.token_text(sentencepiece.encode("the")[0]) == " the"
    assert sentencepiece.token_text(1) == "<s>"


@pytest.mark.parametrize("added", ["été", "a b", "龜", "<tool>"])
def test_added_tokens_are_their_own_text(added: str) -> None:
    inner = build_tokenizer()
    inner.add_tokens([added])
    tokenizer = Tokenizer.from_json(inner.to_str())
    ids = tokenizer.encode(f"x{added}y")
    assert len(ids) == 3
    assert tokenizer.decode(ids) == f"x{added}y"


def test_special_tokens_are_skipped_or_shown(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|im_start|>hi<|im_end|>")
    assert byte_level.decode(ids) == "hi"
    assert byte_level.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"
    assert byte_level.special_token_ids == {0, 1, 2}


@pytest.mark.parametrize("call", [Tokenizer.encode, lambda t, text: t.encode_batch(["ok", text])])
def test_lone_surrogates_are_refused(byte_level: Tokenizer, call: Callable[[Tokenizer, str], object]) -> None:
    with pytest.raises(InvalidText, match=r"character 2 is the lone surrogate '\\ud800'"):
        call(byte_level, "ab\ud800")


@pytest.mark.parametrize("text", ["", "{}", "not json", json.dumps({"model": {"type": "Nonsense"}})])
def test_damaged_files_are_named(text: str) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_json(text)


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Strip", "content": " ", "start": 0, "stop": 1},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}]},
        {"type": "Sequence", "decoders": [BYTE_LEVEL, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    ],
)
def test_other_decoders_are_refused_by_name(with_decoder: Callable[[object], str], decoder: dict[str, object]) -> None:
    with pytest.raises(TokenizerError, match=r"CTC|Strip|Regex"):
        Tokenizer.from_json(with_decoder(decoder))


def test_a_long_text_leaves_other_threads_running(byte_level: Tokenizer) -> None:
    text = "hello world " * 50_000
    worker = threading.Thread(target=byte_level.encode, args=(text,))
    worker.start()
    turns = 0
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10
