"""The model that the scripted engine pretends to be: a small byte-level tokenizer and a ChatML template."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from wllm_sched.messages import ModelInfo

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 512  # larger than the tokenizer's, as in most models
BLOCK_SIZE = 16

# In the order of their merges: a short word before a longer one that it ends would keep that one from being formed.
_WORDS = (
    *(" the", " and", " to", " of", " is", " in", " it", " you", " that", " was", " for", " with", " Hello", " token"),
    *("user", "assistant", "system", "he", "in", "er", "on", "ing", "ou", "re", "st", "11"),
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer(more_special_tokens: Sequence[str] = (), *, begin: bool = False) -> tokenizers.Tokenizer:
    """Bytes, a few words, three special tokens that have the first ids, and more that have the last ones.

    `begin`: a text begins with "<|im_start|>".
    """
    vocab = {token: n for n, token in enumerate((*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())))}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        letters = word.replace(" ", "\u0120")  # the byte-level alphabet's space
        # A word grows letter by letter, so each beginning of it is a token too.
        for beginning in accumulate(letters):
            if beginning not in vocab:
                vocab[beginning] = len(vocab)
                merges.append((beginning[:-1], beginning[-1]))
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = (*SPECIAL_TOKENS, *more_special_tokens)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if begin:
        start = SPECIAL_TOKENS[1]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, vocab[start])]
        )
    return tokenizer


def describe(
    tokenizer: tokenizers.Tokenizer, *, max_model_len: int, num_blocks: int, chat_template: str | None
) -> ModelInfo:
    """What the engine says of its model."""
    return ModelInfo(
        model="scripted",
        architecture="Scripted",
        tokenizer_json=tokenizer.to_str(),
        chat_template=chat_template,
        special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        eos_token_ids=(SPECIAL_TOKENS.index("<|im_end|>"), SPECIAL_TOKENS.index("<|endoftext|>")),
        bos_token_id=None,
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        num_kv_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        dtype="none",
        device="cpu",
        settings=(("engine", "scripted", "an engine without a model, for tests and demonstrations"),),
    )
