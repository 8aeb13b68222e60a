"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from wllm_api.answers.base import Answer, Gained
from wllm_api.answers.logprobs import LOWEST, LogprobsFormat, finite, prompt_offsets
from wllm_api.generation import Generation
from wllm_api.schemas.completions import CompletionRequest
from wllm_api.text import Tokenizer


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt as it is shown: its ids, its text, and where each token begins in the text."""

    token_ids: list[int]
    text: str
    offsets: list[int]

    @classmethod
    def of(cls, token_ids: list[int], text: str | None, tokenizer: Tokenizer) -> EchoedPrompt:
        """The prompt given as `text`, or as ids when that is None."""
        shown = tokenizer.decode(token_ids, skip_special_tokens=False) if text is None else text
        return cls(token_ids, shown, prompt_offsets(tokenizer, token_ids, shown))


class CompletionAnswer(Answer):
    """`echoes` has one entry a prompt when the prompts are to be repeated, else none."""

    object_name: ClassVar[str] = "text_completion"
    chunk_name: ClassVar[str] = "text_completion"

    def __init__(
        self,
        body: CompletionRequest,
        generation: Generation,
        *,
        answer_id: str,
        model_name: str,
        prompts: Sequence[list[int]],
        logprobs: LogprobsFormat,
        echoes: Sequence[EchoedPrompt],
    ) -> None:
        super().__init__(body, generation, answer_id=answer_id, model_name=model_name)
        self._body = body
        self._prompts = prompts
        self._logprobs = logprobs
        self._echoes = echoes

    def chosen(self, choices: list[Gained]) -> list[Gained]:
        """All, or the best `n` of each prompt's `best_of`, the best first."""
        count, n = self._body.num_samples, self._body.n
        if count == n:
            return choices
        prompts = (choices[start : start + count] for start in range(0, len(choices), count))
        return [one for group in prompts for one in sorted(group, key=_mean_logprob, reverse=True)[:n]]

    def whole_choice(self, number: int, gained: Gained) -> dict[str, object]:
        """A choice with its text."""
        choice = self._choice(number, gained, echo=bool(self._echoes))
        prompt = number // self._body.n
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = self._prompts[prompt]
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = self._logprobs.prompt(self.generation.prompt_logprobs[prompt] or ())
        return choice

    def chunk_choices(self, number: int, gained: Gained, *, first: bool) -> Iterator[dict[str, object]]:
        """Text as it comes, the echoed prompt in front."""
        choice = self._choice(number, gained, echo=first and bool(self._echoes))
        if first and self._body.return_token_ids:
            choice["prompt_token_ids"] = self._prompts[number // self._body.n]
        if choice["text"] or any(choice[name] is not None for name in choice if name not in ("index", "text")):
            yield choice

    def _choice(self, number: int, gained: Gained, *, echo: bool) -> dict[str, object]:
        prompt = number // self._body.n
        text = (self._echoes[prompt].text if echo else "") + gained.text
        choice: dict[str, object] = {
            "index": number,
            "text": text,
            "logprobs": self._logprobs_object(prompt, gained, echo=echo),
            "finish_reason": gained.finish_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = gained.token_ids or None
        return choice

    def _logprobs_object(self, prompt: int, gained: Gained, *, echo: bool) -> dict[str, object] | None:
        num_top = self._body.logprobs
        if num_top is None:
            return None
        shift = len(self._echoes[prompt].text) if self._echoes else 0
        token_ids = gained.token_ids[: gained.num_visible]
        offsets = [shift + offset for offset in gained.offsets]
        rows = gained.logprobs
        if echo:
            known = self.generation.prompt_logprobs[prompt] or ()
            shown = self._echoes[prompt]
            return self._logprobs.completion(
                [*shown.token_ids, *token_ids], [*known, *rows], [*shown.offsets, *offsets], num_top
            )
        return self._logprobs.completion(token_ids, rows, offsets, num_top) if token_ids else None


def _mean_logprob(gained: Gained) -> float:
    values = [finite(row.logprob) for row in gained.logprobs]
    return sum(values) / len(values) if values else LOWEST
