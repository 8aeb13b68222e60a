"""Answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from wllm_api.answers.base import Answer, Gained
from wllm_api.answers.logprobs import LogprobsFormat
from wllm_api.generation import Generation
from wllm_api.schemas.chat import ChatRequest


class ChatAnswer(Answer):
    """`echo` is the text of the continued message, put in front of the answer."""

    object_name: ClassVar[str] = "chat.completion"
    chunk_name: ClassVar[str] = "chat.completion.chunk"

    def __init__(
        self,
        body: ChatRequest,
        generation: Generation,
        *,
        answer_id: str,
        model_name: str,
        prompt_token_ids: list[int],
        logprobs: LogprobsFormat,
        echo: str,
    ) -> None:
        super().__init__(body, generation, answer_id=answer_id, model_name=model_name)
        self._body = body
        self._prompt_token_ids = prompt_token_ids
        self._logprobs = logprobs
        self._echo = echo

    def whole_choice(self, number: int, gained: Gained) -> dict[str, object]:
        """A choice with its message."""
        message = {"role": "assistant", "content": self._echo + gained.text, "refusal": None}
        return {"index": number, "message": message, **self._rest(gained)}

    def chunk_choices(self, number: int, gained: Gained, *, first: bool) -> Iterator[dict[str, object]]:
        """The role first, then text as it comes."""
        if first:
            role: dict[str, object] = {"role": "assistant", "content": ""}
            opening = {"index": number, "delta": role, "logprobs": None, "finish_reason": None}
            if self._body.return_token_ids:
                opening["prompt_token_ids"] = self._prompt_token_ids
            yield opening
        text = (self._echo if first else "") + gained.text
        rest = self._rest(gained)
        if text or any(value is not None for value in rest.values()):
            yield {"index": number, "delta": {"content": text} if text else {}, **rest}

    def extras(self) -> dict[str, object]:
        """What vLLM's own request fields ask for."""
        extras: dict[str, object] = {}
        if self._body.return_token_ids:
            extras["prompt_token_ids"] = self._prompt_token_ids
        if self._body.prompt_logprobs is not None:
            extras["prompt_logprobs"] = self._logprobs.prompt(self.generation.prompt_logprobs[0] or ())
        return extras

    def _rest(self, gained: Gained) -> dict[str, object]:
        rows = self._logprobs.chat(gained.logprobs) if self._body.logprobs else []
        rest: dict[str, object] = {
            "logprobs": {"content": rows, "refusal": None} if rows else None,
            "finish_reason": gained.finish_reason,
        }
        if self._body.return_token_ids:
            rest["token_ids"] = gained.token_ids or None
        return rest
