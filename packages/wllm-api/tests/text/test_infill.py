"""Prompts that fill in the middle: each family's tokens in its order, texts as they stand."""

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from wllm_api.engine.scripted_model import build_tokenizer
from wllm_api.text import Infill, Tokenizer

BEFORE, AFTER = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"
FAMILIES = [
    (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"),
     "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>"),
    (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>{}<fim_suffix>{}<fim_middle>"),
    (("<fim-prefix>", "<fim-suffix>", "<fim-middle>"), "<fim-prefix>{}<fim-suffix>{}<fim-middle>"),
    (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), "<｜fim▁begin｜>{}<｜fim▁hole｜>{}<｜fim▁end｜>"),
    (("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"), "▁<PRE>{}▁<SUF>{}▁<MID>"),
    (("[SUFFIX]", "[PREFIX]"), "[SUFFIX]{1}[PREFIX]{0}"),
]  # fmt: skip


def infill(tokenizer: Tokenizer) -> Infill:
    found = Infill.of(tokenizer)
    assert found is not None
    return found


@pytest.mark.parametrize(("marks", "form"), FAMILIES)
def test_each_family(marks: tuple[str, ...], form: str) -> None:
    tokenizer = Tokenizer.from_json(build_tokenizer(marks).to_str())
    made = infill(tokenizer)
    ids = made.prompt(BEFORE, AFTER, add_special_tokens=True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == form.format(BEFORE, AFTER)
    before = tokenizer.encode(BEFORE, add_special_tokens=False)
    assert made.prompt(before, AFTER, add_special_tokens=True) == ids
    assert made.ends >= {tokenizer.id_of(mark) for mark in marks}


@pytest.mark.parametrize(("marks", "form"), FAMILIES)
def test_incomplete_marks_are_no_family(marks: tuple[str, ...], form: str) -> None:
    for left_out in marks[: form.count("{") + 1][:2]:
        rest = [mark for mark in marks if mark != left_out]
        assert Infill.of(Tokenizer.from_json(build_tokenizer(rest).to_str())) is None


def test_texts_may_be_empty() -> None:
    tokenizer = Tokenizer.from_json(build_tokenizer(FAMILIES[0][0]).to_str())
    ids = infill(tokenizer).prompt("", "x", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|fim_prefix|><|fim_suffix|>x<|fim_middle|>"


def test_no_space_is_put_in_front_of_the_rest_of_a_line() -> None:
    """Tokenizers like CodeLlama's begin every text with a space."""
    letters = ["▁", "☺", *"retunx+1"]
    inner = tokenizers.Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    inner.add_special_tokens([AddedToken(mark, normalized=False) for mark in ("▁<PRE>", "▁<SUF>", "▁<MID>")])
    tokenizer = Tokenizer.from_json(inner.to_str())
    ids = infill(tokenizer).prompt("return x", "+1", add_special_tokens=True)
    assert [inner.id_to_token(one) for one in ids] == ["▁<PRE>", *"▁return▁x", "▁<SUF>", "+", "1", "▁<MID>"]
