"""Small tokenizers of each kind that language models have."""

import json
import random

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.text import Tokenizer

TEXTS = (
    "Hello world, it is the token!",
    "  two spaces and a tail  ",
    "\n\n\ttabs\r\n",
    "ÄÖ é ñ 龜 你好 🫠👩‍👩‍👧",
    "<|im_start|>user\nhi<|im_end|>",
    "",
    " ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﷽ ქართული",
)


def sentencepiece_bpe() -> tokenizers.Tokenizer:
    words = (
        "▁",
        "a",
        "e",
        "l",
        "o",
        "h",
        "w",
        "r",
        "d",
        "t",
        "▁t",
        "▁th",
        "▁the",
        "he",
        "▁he",
        "ll",
        "▁hell",
        "▁hello",
    )
    vocab = {token: n for n, token in enumerate(("<unk>", "<s>", "</s>"))}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocab |= {word: 259 + n for n, word in enumerate(words)}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("h", "e"), ("▁", "he"), ("l", "l"), ("▁he", "ll"), ("▁hell", "o")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    return tokenizer


def metaspace_unigram() -> tokenizers.Tokenizer:
    pieces = [
        ("<unk>", 0.0),
        ("▁", -2.0),
        ("▁the", -3.0),
        ("▁hello", -4.0),
        *((letter, -6.0) for letter in "ehlotwrd,!"),
    ]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def plain_words() -> tokenizers.Tokenizer:
    words = ("[UNK]", "the", "hello", "world", "é", ",")
    tokenizer = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


KINDS = {
    "byte_level": build_tokenizer,
    "sentencepiece": sentencepiece_bpe,
    "metaspace": metaspace_unigram,
    "words": plain_words,
}


@pytest.fixture(params=KINDS)
def reference(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    """The library's own tokenizer, of each kind."""
    return KINDS[request.param]()


@pytest.fixture
def tokenizer(reference: tokenizers.Tokenizer) -> Tokenizer:
    """Ours of the same file."""
    return Tokenizer.from_json(reference.to_str())


@pytest.fixture
def byte_level() -> Tokenizer:
    return Tokenizer.from_json(build_tokenizer().to_str())


@pytest.fixture
def sentencepiece() -> Tokenizer:
    return Tokenizer.from_json(sentencepiece_bpe().to_str())


@pytest.fixture
def texts() -> tuple[str, ...]:
    return TEXTS


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20_26)


@pytest.fixture
def with_decoder() -> object:
    """A function: the byte-level tokenizer.json with another decoder section."""

    def replaced(decoder: object) -> str:
        return json.dumps({**json.loads(build_tokenizer().to_str()), "decoder": decoder})

    return replaced
