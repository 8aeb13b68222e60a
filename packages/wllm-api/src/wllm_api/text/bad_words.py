"""Bad words as token ids: the only sampling parameter that needs the tokenizer before a request is submitted."""

from __future__ import annotations

from dataclasses import replace

from wllm_api.text.tokenizer import Tokenizer
from wllm_sched.errors import InvalidParameter
from wllm_sched.sampling import SamplingParams


def resolve_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """`params` with its `bad_words`, with and without a leading space, added to `bad_words_token_ids`.

    Raises `InvalidParameter` for a word without tokens and `InvalidText` for one that is not valid Unicode.
    """
    if not params.bad_words:
        return params
    banned = dict.fromkeys(tuple(token_ids) for token_ids in params.bad_words_token_ids)
    for word in params.bad_words:
        bare = word.lstrip()
        if not bare:
            raise InvalidParameter("bad_words", f"A bad word is empty: {word!r}. Leave it out, or give it a letter.")
        # A vocabulary has one token for the word at the start of a text and another for the word after a space.
        for text in (bare, " " + bare):
            token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if token_ids:
                banned[token_ids] = None
    return replace(params, bad_words=(), bad_words_token_ids=tuple(banned))
