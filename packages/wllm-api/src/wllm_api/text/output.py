"""The answer text of one sample, from the events of the engine.

Streamed and whole answers both go through this class, so they cannot differ. Owns stop strings and the counting of
tokens; whoever pushes events aborts the sample in the engine when a delta says `stop_hit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wllm_api.text.detokenizer import Detokenizer
from wllm_api.text.stop_strings import StopStrings
from wllm_api.text.tokenizer import Tokenizer
from wllm_sched.messages import FinishReason, TokenEvent
from wllm_sched.plan import TokenLogprobs
from wllm_sched.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one event added to the answer.

    `logprobs` (empty unless asked for) and `text_offsets` (characters from the answer's start to where the token began)
    have one entry per token, given out with the token, even while its text is held back. The last `num_hidden` tokens
    (the stop token: 0 or 1) count in usage but have no text in the answer. `stop_reason` is the stop string or the id
    from `stop_token_ids` that ended it, None for the model's own end tokens. `stop_hit`: a stop string ended the
    answer, so the sample must be aborted in the engine.
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
    """Assembles one sample's text; the deltas' texts joined are the answer.

    Stop strings are looked for in the text that follows the first `min_tokens` tokens. An unfinished character at the
    very end is left out. `kept` are special tokens whose text is part of the answer in any case.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        stops = (params.stop,) if isinstance(params.stop, str) else params.stop or ()
        self._detokenizer = Detokenizer(
            tokenizer, prompt_token_ids, skip_special_tokens=params.skip_special_tokens, kept=kept
        )
        self._stops = StopStrings(stops, include=params.include_stop_str_in_output)
        self._params = params
        self._num_tokens = 0
        self._num_chars = 0
        self._finished = False

    @property
    def num_tokens(self) -> int:
        """Completion tokens of usage: up to and including the one that ended the answer, hidden ones too."""
        return self._num_tokens

    @property
    def finished(self) -> bool:
        """Whether a delta with a `finish_reason` has been returned."""
        return self._finished

    def push(self, event: TokenEvent) -> TextDelta:
        """What `event` adds; events after the end (tokens that were in flight) add nothing."""
        if self._finished:
            return TextDelta()
        num_hidden = int(event.stop_token_id is not None and not self._params.include_stop_str_in_output)
        num_shown = len(event.token_ids) - num_hidden
        pieces: list[str] = []
        offsets: list[int] = []
        for token_id in event.token_ids[:num_shown]:
            offsets.append(self._num_chars)
            text, stop = self._add(token_id)
            pieces.append(text)
            if stop is not None:
                self._finished = True
                return self._delta(event, "".join(pieces), offsets, 0, "stop", stop, stop_hit=True)
        for _ in range(num_hidden):
            offsets.append(self._num_chars)
            self._num_tokens += 1
        if event.finish_reason is not None:
            self._finished = True
            pieces.append(self._stops.flush())
        listed = event.stop_token_id is not None and event.stop_token_id in (self._params.stop_token_ids or ())
        reason = event.stop_token_id if listed else None
        return self._delta(event, "".join(pieces), offsets, num_hidden, event.finish_reason, reason)

    def _add(self, token_id: int) -> tuple[str, str | None]:
        piece = self._detokenizer.push(token_id)
        self._num_tokens += 1
        self._num_chars += len(piece)
        if self._num_tokens <= self._params.min_tokens:
            return piece, None
        return self._stops.push(piece)

    def _delta(
        self,
        event: TokenEvent,
        text: str,
        offsets: list[int],
        num_hidden: int,
        finish_reason: FinishReason | None,
        stop_reason: str | int | None,
        *,
        stop_hit: bool = False,
    ) -> TextDelta:
        count = len(offsets)
        return TextDelta(
            text=text,
            token_ids=tuple(event.token_ids[:count]),
            logprobs=tuple(event.logprobs[:count]) if event.logprobs is not None else (),
            text_offsets=tuple(offsets),
            num_hidden=num_hidden,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            stop_hit=stop_hit,
        )
