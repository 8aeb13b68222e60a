"""How text is split before byte-level BPE, by the name in tokenizer.ggml.pre.

The names, which of them share a pattern, and the patterns are facts of the models' own tokenizer.json files, as
collected in llama.cpp's src/llama-vocab.cpp. Each pattern of a list splits what the ones before it left; text between
matches stays a piece of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Splitting:
    """`patterns` in order; `ignore_merges`: a piece that is a token is taken whole; `add_bos`: where the file does
    not say; `nfc`: the text is composed first."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LOWER_LAST = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER_FIRST = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_ASCII_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_KANA_HAN = "[一-龥぀-ゟ゠-ヿ]+"
_HAN_HANGUL = "[一-龥ࠀ-一가-퟿]+"
# Letters with case, without those that DeepSeek's list leaves out (Armenian and Georgian small letters, mathematical
# alphabets, and what later versions of Unicode added).
_CASED = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^"
    "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\ua7ff\uab30-\uab68\U00010570-\U000105bc"
    "\U00010d50-\U00010d85\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001df2a]]"
)

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SYMBOLS}|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_ENGLISH}|{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|{_SPACES}"
_QWEN35 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_TEKKEN = rf"{_LOWER_LAST}|{_UPPER_FIRST}|\p{{N}}|{_SYMBOLS}[\r\n/]*|{_SPACES}"
_GPT4O = rf"{_LOWER_LAST}{_ENGLISH}?|{_UPPER_FIRST}{_ENGLISH}?|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n/]*|{_SPACES}"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DEEPSEEK3 = rf"{_ASCII_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_SPARK = rf"{_ASCII_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_ENGLISH}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_MINICPM = rf"{_ENGLISH}|{_WORD}|\p{{N}}+|{_SYMBOLS}[\r\n]*|{_SPACES}"
_EXAONE_MOE = (
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|{_SYMBOLS}[\r\n/]?|"
    r"\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = (
    rf"{_ENGLISH}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n]*|\s*[\r\n]+|"
    + "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"\s{1,2}(?!\S)|\s{1}"
)
_YOUTU = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _KANA_HAN,
    rf"{_LOWER_LAST}{_ENGLISH}?|{_UPPER_FIRST}{_ENGLISH}?|\p{{N}}|{_SYMBOLS}[\r\n/]*|{_SPACES}",
)
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)

_BY_SPLITTING: tuple[tuple[Splitting, str], ...] = (
    (
        Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "default",
    ),
    (
        Splitting((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (Splitting((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (Splitting((_QWEN2,), nfc=True), "qwen2"),
    (Splitting((_QWEN2,)), "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    (Splitting((_QWEN35,)), "qwen35"),
    (
        Splitting((_GPT2,)),
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4 modern-bert roberta-bpe "
        "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
    ),
    (
        Splitting((r"\p{N}", _GPT2)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    ),
    (Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    (
        Splitting(("[\r\n]", rf"\s?{_CASED}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN_HANGUL, r"\p{N}+")),
        "deepseek-llm",
    ),
    (Splitting(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")), "deepseek-coder"),
    (Splitting((r"\p{N}{1,3}", _KANA_HAN, _DEEPSEEK3)), "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (Splitting((r"\p{N}{1,3}", _KANA_HAN, _SPARK, r"\p{N}")), "spark2_5"),
    (Splitting((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (Splitting((_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (Splitting((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)), "tiny_aya cohere2moe"),
    (Splitting((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (Splitting((_BLOOM, r"\p{N}")), "viking"),
    (Splitting((r"\p{N}+", r"(?=(\d{3})+(?!\d))")), "superbpe"),
    (Splitting((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (Splitting((_SEED,)), "seed-coder"),
    (Splitting((rf"{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|{_SPACES}",)), "ufakzeka"),
    (Splitting((r"\p{N}{1,3}", _MINICPM), ignore_merges=True), "minicpm5"),
    (Splitting((_EXAONE_MOE,)), "exaone-moe"),
    (Splitting((_JAIS2,)), "jais-2"),
    (Splitting((r"[^\n]+|[\n]+", _QWEN2)), "laguna"),
    (Splitting(_YOUTU, ignore_merges=True), "youtu"),
    (Splitting(_CHAMELEON, add_bos=True), "chameleon"),
)

SPLITTINGS = {name: splitting for splitting, names in _BY_SPLITTING for name in names.split()}
