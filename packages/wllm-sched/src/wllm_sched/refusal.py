"""Requests that can never run: what a scheduler refuses at once instead of queueing for ever.

Owns the checks that need the model or the pool; ranges and types of parameters are `SamplingParams`' own. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wllm_sched.config import SchedulerConfig
from wllm_sched.errors import RequestRefused
from wllm_sched.pooling import Pool
from wllm_sched.sampling import SamplingParams


def refuse_impossible(
    config: SchedulerConfig, num_cache_tokens: int, prompt: Sequence[int], params: SamplingParams, knows_grammars: bool
) -> None:
    """Raise `RequestRefused` unless `prompt` can run with `params` and `num_cache_tokens` tokens of KV cache in all."""
    if params.grammar is not None and not knows_grammars:
        raise RequestRefused(
            "The answer is to match a grammar, but this engine was loaded without a tokenizer. Leave the grammar out, "
            "or load the tokenizer.",
            parameter="grammar",
        )
    if not prompt:
        raise RequestRefused("The prompt is empty: 0 tokens. Send at least one token.", parameter="prompt")
    _refuse_foreign_ids("prompt", prompt, config.vocab_size)
    _refuse_foreign_ids("stop_token_ids", params.stop_token_ids or (), config.vocab_size)
    _refuse_foreign_ids("logit_bias", params.logit_bias or (), config.vocab_size)
    _refuse_foreign_ids("allowed_token_ids", params.allowed_token_ids or (), config.vocab_size)
    for word in params.bad_words_token_ids:
        _refuse_foreign_ids("bad_words_token_ids", word, config.vocab_size)
    room = config.max_model_len if params.max_tokens == 0 else config.max_model_len - 1
    if len(prompt) > room:
        wanted = "" if params.max_tokens == 0 else ", and at least 1 token must be generated"
        raise RequestRefused(
            f"This model's maximum context length is {config.max_model_len} tokens. However, your prompt has "
            f"{len(prompt)} tokens{wanted}. Shorten the prompt.",
            parameter="prompt",
            code="context_length_exceeded",
        )
    if len(prompt) > num_cache_tokens:
        raise RequestRefused(
            f"The KV cache holds {num_cache_tokens} tokens in all. However, your prompt has {len(prompt)} tokens. "
            "Shorten the prompt or start the server with more KV cache memory.",
            parameter="prompt",
            code="context_length_exceeded",
        )


def refuse_impossible_texts(request: Pool, *, vocab_size: int, max_model_len: int, dimensions: Sequence[int]) -> None:
    """Raise `RequestRefused` unless a vector can be made of each text; `dimensions` are the lengths one may have."""
    if request.dimensions is not None and request.dimensions not in dimensions:
        raise RequestRefused(
            f"dimensions is {request.dimensions}, which is no length of this model's vectors. Leave it out.",
            parameter="dimensions",
        )
    for text in request.texts:
        if not text.token_ids:
            raise RequestRefused("A text is empty: 0 tokens. Send at least one token.", parameter="input")
        _refuse_foreign_ids("input", text.token_ids, vocab_size)
        if len(text.token_ids) > max_model_len:
            raise RequestRefused(
                f"This model's maximum context length is {max_model_len} tokens. However, a text has "
                f"{len(text.token_ids)} tokens. Shorten it.",
                parameter="input",
                code="context_length_exceeded",
            )


def _refuse_foreign_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    known = range(vocab_size)
    if set(map(type, token_ids)) <= {int} and min(token_ids, default=0) >= 0 and max(token_ids, default=0) < vocab_size:
        return
    wrong = next(token_id for token_id in token_ids if type(token_id) is not int or token_id not in known)
    raise RequestRefused(
        f"{name} holds {wrong!r}, which is not a token id of this model. Send integers from 0 to {vocab_size - 1}.",
        parameter=name,
    )
