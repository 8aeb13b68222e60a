"""What `LLM.generate` returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from wllm_sched import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token at one position; `rank` counts from 1 (None where it was not counted)."""

    logprob: float
    rank: int | None
    decoded_token: str | None


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `token_ids` holds the stop token, `text` does not; `logprobs` has one dict a token, by id."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its samples. `prompt_logprobs` has one entry a prompt token, None for the first."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
