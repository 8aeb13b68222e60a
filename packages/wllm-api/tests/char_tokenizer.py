"""A tokenizer of single characters, with the marks of a family as special tokens or as text."""

from collections.abc import Sequence

import tokenizers


def char_tokenizer(special: Sequence[str] = (), words: Sequence[str] = ()) -> tokenizers.Tokenizer:
    """One token for each printable ASCII character, the line break and the end; `special` and `words` are added."""
    vocab = {chr(code): code - 0x20 for code in range(0x20, 0x7F)}
    vocab["\u0120"] = vocab.pop(" ")
    vocab["\u010a"] = len(vocab)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.add_special_tokens(["<|end_of_text|>"])
    inner.add_special_tokens([tokenizers.AddedToken(word, special=True, normalized=False) for word in special])
    inner.add_tokens([tokenizers.AddedToken(word, normalized=False) for word in words])
    return inner
