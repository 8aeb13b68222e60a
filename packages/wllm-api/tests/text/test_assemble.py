"""Texts and pairs as encoders read them: the tokenizer's own marks around them, and cut where it is wanted."""

from __future__ import annotations

import random

import pytest
import tokenizers

from wllm_api.errors import InvalidText
from wllm_api.text import Tokenizer

WORDS = "don't do not a cheetah , is running . behind it 's prey ! embeddings unaffable".split()


@pytest.fixture(scope="module", params=[True, False], ids=["cleanup", "no cleanup"])
def word_piece(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer that puts [CLS] and [SEP] around texts and pairs."""
    letters = sorted({letter for word in WORDS for letter in word})
    known = ["cheetah", "running", "embed", "un", "not", "do", "n't", ".", ",", "!", "'s"]
    names = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", *known, *letters, *(f"##{letter}" for letter in letters)]
    vocab = {name: number for number, name in enumerate(dict.fromkeys(names))}
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.decoder = tokenizers.decoders.WordPiece(cleanup=request.param)
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    inner.add_special_tokens(["[UNK]", "[PAD]", "[CLS]", "[SEP]"])
    return inner


def texts_of(rng: random.Random, count: int) -> list[str]:
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 8))) for _ in range(count)]


def test_decoding_is_the_librarys(word_piece: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer.from_json(word_piece.to_str())
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(4, word_piece.get_vocab_size()) for _ in range(rng.randint(0, 12))]
        assert tokenizer.decode(ids) == word_piece.decode(ids)
    for text in texts_of(rng, 100):
        assert tokenizer.decode(tokenizer.encode(text)) == word_piece.decode(word_piece.encode(text).ids)


PROCESSORS = {
    "template": None,  # that of the fixture
    "bert": tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "roberta": tokenizers.processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "byte level": tokenizers.processors.ByteLevel(),
    "none": tokenizers.processors.Sequence([]),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_texts_and_pairs_are_the_librarys(word_piece: tokenizers.Tokenizer, processor: str) -> None:
    word_piece = tokenizers.Tokenizer.from_str(word_piece.to_str())
    if PROCESSORS[processor] is not None:
        word_piece.post_processor = PROCESSORS[processor]
    tokenizer = Tokenizer.from_json(word_piece.to_str())
    rng = random.Random(1)
    first, second = texts_of(rng, 50), texts_of(rng, 50)
    for special in (True, False):
        singles = tokenizer.assemble(first, add_special_tokens=special)
        assert [text.token_ids for text in singles] == [
            word_piece.encode(text, add_special_tokens=special).ids for text in first
        ]
        pairs = tokenizer.assemble(first, second, add_special_tokens=special)
        wanted = [word_piece.encode(a, b, add_special_tokens=special) for a, b in zip(first, second)]
        assert [(pair.token_ids, pair.token_type_ids) for pair in pairs] == [(one.ids, one.type_ids) for one in wanted]
    assert tokenizer.assemble([]) == []


def test_what_is_cut_keeps_its_beginning_and_its_marks(word_piece: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer.from_json(word_piece.to_str())
    rng = random.Random(2)
    first, second = texts_of(rng, 60), texts_of(rng, 60)
    for longest in (3, 7, 12):
        for text, cut in zip(first, tokenizer.assemble(first, longest=longest), strict=True):
            inside = word_piece.encode(text, add_special_tokens=False).ids
            assert cut.token_ids == [2, *inside[: longest - 2], 3]
        for text, cut in zip(first, tokenizer.assemble(first, longest=longest + 1, longest_text=longest), strict=True):
            inside = word_piece.encode(text, add_special_tokens=False).ids
            assert cut.token_ids == [2, *inside[: longest - 1], 3]
        pairs = tokenizer.assemble(first, second, longest=longest + 20, longest_text=longest)
        for a, b, pair in zip(first, second, pairs, strict=True):
            head, tail = (word_piece.encode(text, add_special_tokens=False).ids for text in (a, b))
            kept = tail[: max(min(longest, longest + 20 - 3 - len(head)), 0)]
            assert pair.token_ids == [2, *head, 3, *kept, 3]
            assert pair.token_type_ids == [0] * (len(head) + 2) + [1] * (len(kept) + 1)


def test_lone_surrogates_are_refused(word_piece: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer.from_json(word_piece.to_str())
    with pytest.raises(InvalidText):
        tokenizer.assemble(["good"], ["b\ud800"])
