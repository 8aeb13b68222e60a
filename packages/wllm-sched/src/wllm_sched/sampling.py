"""What a request asks of the sampler.

Owns the checks that need no model (ranges, types, contradictions). What needs the model, such as token ids against
the vocabulary, is checked by whoever knows it, before the request reaches the scheduler. Built by the API or by a
Python caller, pickled once to the engine process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields

from wllm_sched import checks
from wllm_sched.errors import InvalidParameter
from wllm_sched.grammar import Grammar

MAX_LOGPROBS = 20
MAX_SAMPLES = 128
MAX_BIAS = 100.0


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request; raises `InvalidParameter` (a `ValueError`) that names the field and its value.

    `temperature` 0 is greedy, and so is `top_p` 0. `top_k` 0 or -1 is off. `max_tokens` None runs to the end of the
    context; 0 only scores the prompt. `logprobs` and `prompt_logprobs` are the number of top entries wanted beside the
    token itself, or None. Stop strings and `bad_words` are texts: whoever tokenises turns bad words into
    `bad_words_token_ids`. An answer under a `grammar` matches it and ends with it. None stands for the default
    everywhere. After construction values are in one form: tuples, plain ints and floats, `top_k` 0 for off,
    `temperature` 0 for greedy.
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
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            if getattr(self, entry.name) is None:
                default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
                setattr(self, entry.name, None if entry.name == "max_tokens" else default)
        self._check_numbers()
        self._check_lists()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                "min_tokens",
                f"min_tokens must not exceed max_tokens, but they are {self.min_tokens} and {self.max_tokens}. "
                "Lower min_tokens or raise max_tokens.",
            )
        if self.top_p == 0.0:
            self.temperature, self.top_p = 0.0, 1.0

    def _check_numbers(self) -> None:
        self.n = checks.integer("n", self.n, 1, MAX_SAMPLES)
        self.temperature = checks.number("temperature", self.temperature, 0.0)
        self.top_p = checks.number("top_p", self.top_p, 0.0, 1.0)
        self.top_k = max(checks.integer("top_k", self.top_k, -1), 0)
        self.min_p = checks.number("min_p", self.min_p, 0.0, 1.0)
        self.repetition_penalty = checks.number("repetition_penalty", self.repetition_penalty)
        if self.repetition_penalty <= 0.0:
            raise InvalidParameter(
                "repetition_penalty",
                f"repetition_penalty must be above 0, but is {self.repetition_penalty}. 1.0 is off, 1.1 is usual.",
            )
        self.presence_penalty = checks.number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        self.frequency_penalty = checks.number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        self.min_tokens = checks.integer("min_tokens", self.min_tokens, 0)
        self.priority = checks.integer("priority", self.priority, -(2**63), 2**63 - 1)
        if self.seed is not None:
            self.seed = checks.integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            self.max_tokens = checks.integer("max_tokens", self.max_tokens, 0)
        if self.logprobs is not None:
            self.logprobs = checks.integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = checks.integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            checks.boolean(name, getattr(self, name))

    def _check_lists(self) -> None:
        self.stop = checks.texts("stop", (self.stop,) if isinstance(self.stop, str) else self.stop)
        self.bad_words = checks.texts("bad_words", self.bad_words)
        self.cache_salt = checks.text("cache_salt", self.cache_salt)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise InvalidParameter(
                "grammar", f"grammar must be a Grammar, but is a {type(self.grammar).__name__}. Give a Grammar or None."
            )
        self.stop_token_ids = checks.token_ids("stop_token_ids", self.stop_token_ids)
        self.bad_words_token_ids = checks.token_id_lists("bad_words_token_ids", self.bad_words_token_ids)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = checks.token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise InvalidParameter(
                    "allowed_token_ids", "allowed_token_ids must not be empty, but is []. Give an id or leave it out."
                )
        self.logit_bias = checks.biases("logit_bias", self.logit_bias, MAX_BIAS)
