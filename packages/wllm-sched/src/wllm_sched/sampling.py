"""What a request asks of the sampler.

Owns the checks that need no model (ranges, types, contradictions). What needs the model, such as token ids against
the vocabulary, is checked by whoever knows it, before the request reaches the scheduler. Built by the API or by a
Python caller, pickled once to the engine process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wllm_sched.errors import InvalidParameter

MAX_LOGPROBS = 20
MAX_SAMPLES = 128


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request; raises `InvalidParameter` (a `ValueError`) that names the field and its value.

    `temperature` 0 is greedy. `top_k` 0 or -1 is off. `max_tokens` None runs to the end of the context; 0 only scores
    the prompt. `logprobs` and `prompt_logprobs` are the number of top entries wanted beside the token itself, or None.
    Stop strings and `bad_words` are texts: whoever tokenises turns bad words into `bad_words_token_ids`.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] | None = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = field(default_factory=dict)
    bad_words: Sequence[str] | None = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    allowed_token_ids: Sequence[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
