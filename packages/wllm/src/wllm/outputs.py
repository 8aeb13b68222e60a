"""What `LLM` returns: of `generate` and `chat`, of `embed`, of `score`."""

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


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of one text."""

    embedding: list[float]


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """A text and its vector."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput


@dataclass(slots=True)
class ScoringOutput:
    """The score of one pair; `method` is "cross-encoder" or "cosine"."""

    score: float
    method: str


@dataclass(slots=True)
class ScoringRequestOutput:
    """A pair and its score. `prompt_token_ids` are what was read: the pair at once, or one text after the other."""

    prompt_token_ids: list[int]
    outputs: ScoringOutput
