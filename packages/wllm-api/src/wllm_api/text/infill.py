"""Filling in the middle: prompts of code models, with the texts before and after a gap between tokens for that."""

from __future__ import annotations

from typing import NamedTuple

from wllm_api.text.tokenizer import Tokenizer

# A character that no text around it merges with: what the tokenizer puts in front of a text comes before it.
_FENCE = "\u263a"


class _Marks(NamedTuple):
    before: str
    after: str
    answer: str | None
    ends: tuple[str, ...] = ()


# Without a token for the answer the text after the gap comes first.
_FAMILIES = (
    # Qwen Coder; CodeGemma
    _Marks(
        *("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<|fim_pad|>", "<|endoftext|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder, Granite Code; SantaCoder
    _Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<|endoftext|>", "<file_sep>", "<repo_name>")),
    _Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>", "<|endoftext|>")),
    # DeepSeek-Coder
    _Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # CodeLlama
    _Marks("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # Codestral
    _Marks("[PREFIX]", "[SUFFIX]", None),
)


class Infill:
    """Makes such prompts; `ends` are tokens that end the answer, beside the model's own."""

    def __init__(self, tokenizer: Tokenizer, before: int, after: int, answer: int | None, ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._before = before
        self._after = after
        self._answer = answer
        self.ends = ends

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Infill | None:
        """For the first family whose tokens are all there, None without any."""
        for marks in _FAMILIES:
            before, after = tokenizer.id_of(marks.before), tokenizer.id_of(marks.after)
            answer = None if marks.answer is None else tokenizer.id_of(marks.answer)
            if before is None or after is None or (answer is None and marks.answer is not None):
                continue
            others = {tokenizer.id_of(name) for name in marks.ends}
            ends = frozenset(one for one in (before, after, answer, *others) if one is not None)
            return cls(tokenizer, before, after, answer, ends)
        return None

    def prompt(self, before: str | list[int], after: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of the prompt; raises `InvalidText`."""
        start = self._tokenizer.encode("", add_special_tokens=add_special_tokens)
        first = self._tokenizer.encode(before, add_special_tokens=False) if isinstance(before, str) else before
        last = self._inner_ids(after)
        if self._answer is None:
            return [*start, self._after, *last, self._before, *first]
        return [*start, self._before, *first, self._after, *last, self._answer]

    def _inner_ids(self, text: str) -> list[int]:
        plain = self._tokenizer.encode(text, add_special_tokens=False)
        if b"".join(map(self._tokenizer.token_bytes, plain)) == text.encode():
            return plain
        # A tokenizer that begins every text with a space must not do so in the middle of a line.
        fence = self._tokenizer.encode(_FENCE, add_special_tokens=False)
        fenced = self._tokenizer.encode(_FENCE + text, add_special_tokens=False)
        return fenced[len(fence) :] if fenced[: len(fence)] == fence else plain
