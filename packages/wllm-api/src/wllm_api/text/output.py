"""The answer text of one sample, from the events of the engine.

Streamed and whole answers both go through this class, so they cannot differ. Owns stop strings and the counting of
tokens; whoever pushes events aborts the sample in the engine when a delta says `stop_hit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wllm_sched.messages import FinishReason, TokenEvent
from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams

from wllm_api.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one event added to the answer.

    `text_offsets` (characters from the answer's start) and `logprobs` (empty unless asked for) have one entry per token.
    `num_hidden` trailing tokens (the stop token, 0 or 1) count in usage but have no text in the answer. `stop_reason` is
    the stop string or the id from `stop_token_ids` that ended it, None for the model's own end tokens. `stop_hit`: a
    stop string ended the answer, and the sample must be aborted in the engine.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    text_offsets: tuple[int, ...] = ()
    num_hidden: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    stop_hit: bool = False


class OutputText:
    """Assembles one sample's text; `num_tokens` is the completion's share of usage so far."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        raise NotImplementedError

    @property
    def num_tokens(self) -> int:
        """Tokens up to and including the one that ended the answer, held-back and hidden ones too."""
        raise NotImplementedError

    @property
    def finished(self) -> bool:
        """Whether a delta with a `finish_reason` has been returned."""
        raise NotImplementedError

    def push(self, event: TokenEvent) -> TextDelta:
        """What `event` adds; events after the end (tokens already in flight) add nothing."""
        raise NotImplementedError
