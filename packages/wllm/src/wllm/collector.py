"""`Collector`: gathers the events of one offline request into its result."""

from __future__ import annotations

from collections.abc import Sequence

from wllm.outputs import CompletionOutput, Logprob, RequestOutput
from wllm_api.text import OutputText, Tokenizer
from wllm_sched import FinishReason, SamplingParams, TokenEvent, TokenLogprobs


class Collector:
    """Builds a `RequestOutput`; `push` takes every event of the request, in order."""

    def __init__(
        self, prompt: str | None, prompt_token_ids: list[int], params: SamplingParams, tokenizer: Tokenizer | None
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = (
            [OutputText(tokenizer, prompt_token_ids, params) for _ in range(params.n)]
            if tokenizer is not None
            else None
        )
        samples = [CompletionOutput(index) for index in range(params.n)]
        if params.logprobs is not None:
            for sample in samples:
                sample.logprobs = []
        self.result = RequestOutput(prompt, prompt_token_ids, samples)

    @property
    def finished(self) -> bool:
        """Whether every sample has ended."""
        return all(sample.finish_reason is not None for sample in self.result.outputs)

    def push(self, event: TokenEvent) -> bool:
        """Take an event; True when a stop string ended the sample and the engine should stop generating it.

        Raises `RuntimeError` when the engine could not go on with the request.
        """
        if event.finish_reason == "error":
            raise RuntimeError(f"request failed in the engine: {event.error}")
        if event.prompt_logprobs is not None:
            self.result.prompt_logprobs = [
                None if entry is None else self._logprob_dict(entry) for entry in event.prompt_logprobs
            ]
        if event.index == 0:
            self.result.num_cached_tokens = max(self.result.num_cached_tokens, event.num_cached_tokens)
        sample = self.result.outputs[event.index]
        if sample.finish_reason is not None:
            return False
        if self._texts is None:
            self._extend(sample, event.token_ids, event.logprobs or (), event.finish_reason, event.stop_token_id)
            return False
        delta = self._texts[event.index].push(event)
        sample.text += delta.text
        self._extend(sample, delta.token_ids, delta.logprobs, delta.finish_reason, delta.stop_reason)
        return delta.stop_hit

    def _extend(
        self,
        sample: CompletionOutput,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
    ) -> None:
        sample.token_ids += token_ids
        if sample.logprobs is not None:
            sample.logprobs += [self._logprob_dict(entry) for entry in logprobs]
        sample.finish_reason = finish_reason
        sample.stop_reason = stop_reason

    def _logprob_dict(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        entries = {
            token_id: Logprob(value, rank, self._text_of(token_id))
            for rank, (token_id, value) in enumerate(entry.top, start=1)
        }
        entries[entry.token_id] = Logprob(entry.logprob, entry.rank, self._text_of(entry.token_id))
        return entries

    def _text_of(self, token_id: int) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.token_text(token_id)
