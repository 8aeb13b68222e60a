"""Splitting of text: our patterns against the pre-tokenizers that the original models use."""

from __future__ import annotations

import itertools
import random

import pytest
from tokenizers import Regex, pre_tokenizers

from wllm_runtime.checkpoint.gguf_file.pretokenizers import SPLITTINGS

ALPHABET = "aZé龜ñ 19½\n\r\t'.,!?-_$+<=>^~|`/\\()[]{}🫠e\u0301\u00a0\u200bსsStTlL'"


def texts() -> list[str]:
    rng = random.Random(0)
    fixed = ["\n\n1.", "  12", "don't we'LL", "a  b\n\n  c", "１２３ ½", "..." * 3, " \t\n "]
    return fixed + ["".join(rng.choices(ALPHABET, k=rng.randint(1, 40))) for _ in range(300)]


def split(name: str, text: str) -> list[str]:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITTINGS[name].patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


def original(steps: list[pre_tokenizers.PreTokenizer], text: str) -> list[str]:
    """Pieces of `text`, cut where the original pre-tokenizers cut it."""
    cuts = {start for _, (start, _) in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)} | {0, len(text)}
    return [text[start:end] for start, end in itertools.pairwise(sorted(cuts))]


@pytest.mark.parametrize("name", {splitting.patterns: name for name, splitting in SPLITTINGS.items()}.values())
def test_nothing_is_lost(name: str) -> None:
    for text in texts():
        assert "".join(split(name, text)) == text


def test_gpt2_equals_byte_level() -> None:
    for text in texts():
        assert split("gpt-2", text) == original([pre_tokenizers.ByteLevel(add_prefix_space=False)], text)


@pytest.mark.parametrize("name", ["smollm", "starcoder", "command-r", "refact"])
def test_digits_are_split_one_by_one(name: str) -> None:
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    for text in texts():
        assert split(name, text) == original(steps, text)


SPLITS = {
    ("llama-bpe", "I'LL pay 12345 $..\n\n  now"): ["I", "'LL", " pay", " ", "123", "45", " $..\n\n", " ", " now"],
    ("qwen2", "I'LL pay 123 $..\n"): ["I", "'LL", " pay", " ", "1", "2", "3", " $..\n"],
    ("tekken", "HelloWorld 12/\n"): ["Hello", "World", " ", "1", "2", "/\n"],
    ("gpt-4o", "HelloWorld's 1234"): ["Hello", "World's", " ", "123", "4"],
    ("deepseek-v3", "x=12345, 日本"): ["x", "=", "123", "45", ",", " ", "日本"],
    ("deepseek-llm", "ab1234 日本!"): ["ab", "1234", " ", "日本", "!"],
    ("deepseek-coder", "ab12\n日"): ["ab", "1", "2", "\n", "日"],
    ("falcon", "x12345!"): ["x", "123", "45", "!"],
    ("superbpe", "a 1234567 b"): ["a ", "1", "234", "567", " b"],
    ("viking", "ab 12."): ["ab", " ", "1", "2", "."],
}


@pytest.mark.parametrize(("name", "text"), SPLITS)
def test_known_splits(name: str, text: str) -> None:
    assert split(name, text) == SPLITS[name, text]
