"""Bad words as token ids: the only sampling parameter that needs the tokenizer before a request is submitted."""

from __future__ import annotations

from wllm_sched.sampling import SamplingParams

from wllm_api.text.tokenizer import Tokenizer


def resolve_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """`params` with its `bad_words`, with and without a leading space, added to `bad_words_token_ids`."""
    raise NotImplementedError
