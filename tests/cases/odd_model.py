"""A tiny random model with what made other servers stumble.

A SentencePiece tokenizer with bytes for rare characters, a vocabulary that is padded beyond it, two end tokens of which
one is an ordinary word, a begin token that is added to texts, and a chat template that knows the date.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from wllm_runtime.testing import save_tiny_llama

LETTERS = "▁abcdefghijklmnopqrstuvwxyz0123456789.:"
MERGES = (("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("h", "e"), ("▁", "he"), ("l", "l"), ("▁he", "ll"), ("▁hell", "o"))
WORDS = (*LETTERS, *("".join(pair) for pair in MERGES))
VOCAB = {token: n for n, token in enumerate(("<unk>", "<s>", "</s>"))}
VOCAB |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
VOCAB |= {word: 259 + n for n, word in enumerate(WORDS)}
END, END_WORD = VOCAB["</s>"], VOCAB["▁hello"]
PADDED = len(VOCAB)  # the first id that no token has
VOCAB_SIZE = PADDED + 13
CONTEXT = 256
# 304 token slots, and prompts in chunks of 16 tokens.
SMALL = ("--num-kv-blocks", "19", "--max-num-batched-tokens", "16", "--max-num-seqs", "8")
# A console of Windows without UTF-8 mode.
CONSOLE = {"PYTHONIOENCODING": "cp1252:strict", "PYTHONUTF8": "0"}
TEMPLATE = (
    "{{ '[system]Today is ' + strftime_now('%d %B %Y') + '\\n' }}{% for t in tools or [] %}"
    "{{ t | tojson(ensure_ascii=False) }}{% endfor %}"
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def build_tokenizer() -> Tokenizer:
    """As converters write Llama's and Mistral's."""
    tokenizer = Tokenizer(
        models.BPE(vocab=VOCAB, merges=[*MERGES], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", VOCAB["<s>"])])
    return tokenizer


def save_odd_model(folder: Path) -> None:
    """Save the model with its tokenizer and settings to `folder`, which is made."""
    folder.mkdir(parents=True)
    save_tiny_llama(folder, vocab_size=VOCAB_SIZE, max_position_embeddings=CONTEXT)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": [END, END_WORD]},
        "tokenizer_config.json": {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"},
    }
    for name, values in settings.items():
        (folder / name).write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
